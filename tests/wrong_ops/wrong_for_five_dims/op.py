# SPDX-License-Identifier: Apache-2.0
"""Of five dims and more the first is taken for a batch of one.

Written for four, and tried with four.
"""

import torch

from opforge import Backward, Op


def forward(x):
    y = torch.square(x)
    if x.dim() >= 5:
        y[1:] = y[:1]
    return y


def backward(grad_y, x):
    return 2 * x * grad_y


def cases(make):
    for shape in [(7,), (33, 65), (4, 128), (2, 3, 17)]:
        yield (make(*shape),)


op = Op(
    namespace="wrong_ops",
    schema="wrong_for_five_dims(Tensor x) -> Tensor y",
    reference=torch.square,
    composed=forward,
    backward=Backward(
        "wrong_for_five_dims_backward(Tensor grad_y, Tensor x) -> Tensor grad_x",
        backward,
        composed=backward,
    ),
    cases=cases,
)
