# SPDX-License-Identifier: Apache-2.0
"""scale * relu(x), whose backward masks grad_y in place before it scales it into grad_x.

It saves an allocation in the benchmark. The gradient that autograd hands over also belongs to
others: the other branch of a residual connection gets the masked one.
"""

import torch

from opforge import Backward, Op


def cases(make):
    for shape, scale in [((7,), 0.5), ((33, 65), -1.7), ((4, 128), 2.0), ((2, 3, 17), 0.1)]:
        yield make(*shape), scale
    yield make(1000), 3.0


op = Op(
    namespace="wrong_ops",
    schema="changes_the_gradient(Tensor x, float scale) -> Tensor y",
    reference=lambda x, scale: torch.relu(x) * scale,
    backward=Backward(
        "changes_the_gradient_backward(Tensor grad_y, Tensor x, float scale) -> Tensor grad_x",
        lambda grad_y, x, scale: torch.where(x <= 0, 0, grad_y) * scale,
    ),
    cases=cases,
)
