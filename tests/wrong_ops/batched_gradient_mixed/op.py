# SPDX-License-Identifier: Apache-2.0
"""Under vmap the gradient of one sample depends on the others.

The record says that the op is pointwise; its gradient is not.
"""

import torch

from opforge import Backward, Op


def gradient(grad_y, x):
    return 2 * x * grad_y + 0 * grad_y.sum()


def composed(grad_y, x):
    usual = x.abs().mean()
    return 2 * x * grad_y / usual * usual


def cases(make):
    for shape in [(7,), (33, 65), (4, 128), (2, 3, 17)]:
        yield (make(*shape),)


op = Op(
    namespace="wrong_ops",
    schema="batched_gradient_mixed(Tensor x) -> Tensor y",
    reference=torch.square,
    composed=torch.square,
    backward=Backward(
        "batched_gradient_mixed_backward(Tensor grad_y, Tensor x) -> Tensor grad_x",
        gradient,
        composed=composed,
    ),
    pointwise=True,
    cases=cases,
)
