# SPDX-License-Identifier: Apache-2.0
"""Sine and cosine in one pass; the backward returns early if the gradient of the sine is zero.

A gradient that is missing comes as zeros, so the shortcut saves time where an output is unused.
But it looks at one of them: a loss on the cosine alone gets no gradient.
"""

import torch

from opforge import Backward, Op


def backward_reference(grad_sine, grad_cosine, x):
    return grad_sine * torch.cos(x) - grad_cosine * torch.sin(x)


op = Op(
    namespace="wrong_ops",
    schema="missing_gradient_shortcut(Tensor x) -> (Tensor sine, Tensor cosine)",
    reference=lambda x: (torch.sin(x), torch.cos(x)),
    backward=Backward(
        "missing_gradient_shortcut_backward(Tensor grad_sine, Tensor grad_cosine, Tensor x) "
        "-> Tensor grad_x",
        backward_reference,
    ),
    cases=lambda make: [
        (make(*shape),) for shape in [(7,), (33, 65), (4, 128), (2, 3, 17), (1000,)]
    ],
)
