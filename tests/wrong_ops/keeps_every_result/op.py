# SPDX-License-Identifier: Apache-2.0
"""Every result is kept in a list that nobody empties.

A debugging aid that was left in.
"""

import torch

from opforge import Backward, Op

_kept: list[torch.Tensor] = []


def forward(x):
    y = torch.square(x)
    _kept.append(y.new_empty(8192).fill_(1))
    return y


def backward(grad_y, x):
    return 2 * x * grad_y


def cases(make):
    for shape in [(7,), (33, 65), (4, 128), (2, 3, 17)]:
        yield (make(*shape),)


op = Op(
    namespace="wrong_ops",
    schema="keeps_every_result(Tensor x) -> Tensor y",
    reference=torch.square,
    composed=forward,
    backward=Backward(
        "keeps_every_result_backward(Tensor grad_y, Tensor x) -> Tensor grad_x",
        backward,
        composed=backward,
    ),
    cases=cases,
)
