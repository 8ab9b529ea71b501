# SPDX-License-Identifier: Apache-2.0
"""The largest element of each row, and its index: an integer output beside a differentiable one."""

import torch

from opforge import Backward, Op


def reference(x):
    index = x.argmax(-1)
    return x.gather(-1, index.unsqueeze(-1)).squeeze(-1), index


def backward_reference(grad_value, index, x_shape):
    places = torch.arange(x_shape[-1], device=index.device) == index.unsqueeze(-1)
    return torch.where(places, grad_value.unsqueeze(-1), 0)


def validate(x):
    if x.dim() == 0 or x.shape[-1] == 0:
        raise ValueError(f"x must have rows of at least one element, got shape {tuple(x.shape)}")


def cases(make):
    for shape in [(7,), (5, 33), (4, 128), (2, 3, 17), (64, 1), (0, 3)]:
        yield (make(*shape),)
    yield (make(24, 9).t(),)


op = Op(
    namespace="right_ops",
    schema="peak(Tensor x) -> (Tensor value, Tensor index)",
    reference=reference,
    backward=Backward(
        "peak_backward(Tensor grad_value, Tensor index, int[] x_shape) -> Tensor grad_x",
        backward_reference,
    ),
    validate=validate,
    cases=cases,
    rowwise=True,
)
