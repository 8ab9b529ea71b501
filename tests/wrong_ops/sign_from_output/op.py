# SPDX-License-Identifier: Apache-2.0
"""leaky_relu, whose backward asks the sign of y instead of that of x.

It saves keeping x, and holds as long as the slope is positive. A negative slope maps negative x
to positive y, and the gradient takes the wrong branch.
"""

import torch

from opforge import Op


def backward(grad_y, y, slope):
    return torch.where(y > 0, grad_y, grad_y * slope)  # wrong: x > 0


def cases(make):
    for shape, slope in [((7,), 0.1), ((33, 65), 0.01), ((2, 3, 17), 0.2), ((1000,), 0.5)]:
        yield make(*shape), slope
    yield make(4, 16), -0.5


op = Op(
    namespace="wrong_ops",
    schema="sign_from_output(Tensor x, float slope) -> Tensor y",
    reference=lambda x, slope: torch.where(x > 0, x, x * slope),
    backward=backward,
    cases=cases,
)
