# SPDX-License-Identifier: Apache-2.0
"""The backward of large tensors cannot be differentiated.

A detach() that saves memory where it matters: gradgradcheck only sees small tensors.
"""

import torch

from opforge import Backward, Op


def formula(grad_y, x):
    return 2 * (x.detach() if x.numel() > 100 else x) * grad_y


def forward(x):
    return torch.square(x)


def backward(grad_y, x):
    return 2 * x * grad_y


def cases(make):
    for shape in [(7,), (33, 65), (4, 128), (2, 3, 17)]:
        yield (make(*shape),)


op = Op(
    namespace="wrong_ops",
    schema="large_backward_detached(Tensor x) -> Tensor y",
    reference=torch.square,
    composed=forward,
    backward=Backward(
        "large_backward_detached_backward(Tensor grad_y, Tensor x) -> Tensor grad_x",
        formula,
        composed=backward,
    ),
    cases=cases,
)
