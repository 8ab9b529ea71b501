# SPDX-License-Identifier: Apache-2.0
"""The backward's reference has the wrong factor, its kernel the right one.

The reference serves where there is no kernel, and in double backward.
"""

import torch

from opforge import Backward, Op


def forward(x):
    return torch.square(x)


def backward(grad_y, x):
    return 2 * x * grad_y


def cases(make):
    for shape in [(7,), (33, 65), (4, 128), (2, 3, 17)]:
        yield (make(*shape),)


op = Op(
    namespace="wrong_ops",
    schema="backward_reference_wrong(Tensor x) -> Tensor y",
    reference=torch.square,
    composed=forward,
    backward=Backward(
        "backward_reference_wrong_backward(Tensor grad_y, Tensor x) -> Tensor grad_x",
        lambda grad_y, x: x * grad_y,
        composed=backward,
    ),
    cases=cases,
)
