# SPDX-License-Identifier: Apache-2.0
"""The kernel prints a line when it is called.

Another debugging aid; a program whose output is parsed breaks.
"""

import torch

from opforge import Backward, Op


def forward(x):
    print("forward of", tuple(x.shape))
    return torch.square(x)


def backward(grad_y, x):
    return 2 * x * grad_y


def cases(make):
    for shape in [(7,), (33, 65), (4, 128), (2, 3, 17)]:
        yield (make(*shape),)


op = Op(
    namespace="wrong_ops",
    schema="prints(Tensor x) -> Tensor y",
    reference=torch.square,
    composed=forward,
    backward=Backward(
        "prints_backward(Tensor grad_y, Tensor x) -> Tensor grad_x", backward, composed=backward
    ),
    cases=cases,
)
