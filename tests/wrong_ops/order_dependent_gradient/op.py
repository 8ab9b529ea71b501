# SPDX-License-Identifier: Apache-2.0
"""x + bias, whose backward adds the gradient of bias up with atomics.

Sums of floats depend on their order, and blocks come in any: two runs of the same training give
two models. Each of them is within the allowed error.
"""

import torch

from opforge import Backward, Op


def validate(x, bias):
    if x.dim() == 0 or tuple(bias.shape) != (x.shape[-1],):
        raise ValueError(
            f"bias has shape {tuple(bias.shape)} and x has {tuple(x.shape)}; "
            "bias needs one value per column of x"
        )
    if bias.dtype != x.dtype:
        raise TypeError(f"x is {x.dtype} but bias is {bias.dtype}")


def backward_reference(grad_y):
    rows = grad_y.reshape(grad_y.shape[:-1].numel(), grad_y.shape[-1])
    return grad_y, rows.sum(0)


def cases(make):
    for shape in [(7,), (5, 33), (4, 128), (2, 3, 17), (64, 9)]:
        yield make(*shape), make(shape[-1])


op = Op(
    namespace="wrong_ops",
    schema="order_dependent_gradient(Tensor x, Tensor bias) -> Tensor y",
    reference=lambda x, bias: x + bias,
    backward=Backward(
        "order_dependent_gradient_backward(Tensor grad_y) -> (Tensor grad_x, Tensor grad_bias)",
        backward_reference,
    ),
    dtypes=(torch.float32, torch.float64),
    validate=validate,
    cases=cases,
)
