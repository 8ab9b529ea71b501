# SPDX-License-Identifier: Apache-2.0
"""Numbers below 1e-20 count as 0.

Random inputs have none.
"""

import torch

from opforge import Backward, Op


def forward(x):
    return torch.square(x.masked_fill(x.abs() < 1e-10, 0))


def backward(grad_y, x):
    return 2 * x * grad_y


def cases(make):
    for shape in [(7,), (33, 65), (4, 128), (2, 3, 17)]:
        yield (make(*shape),)


op = Op(
    namespace="wrong_ops",
    schema="tiny_inputs_flushed(Tensor x) -> Tensor y",
    reference=torch.square,
    composed=forward,
    backward=Backward(
        "tiny_inputs_flushed_backward(Tensor grad_y, Tensor x) -> Tensor grad_x",
        backward,
        composed=backward,
    ),
    cases=cases,
)
