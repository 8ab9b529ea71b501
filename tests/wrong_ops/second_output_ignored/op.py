# SPDX-License-Identifier: Apache-2.0
"""softmax and the logarithm of its denominator; the backward knows the first output only.

The second one was added for inference, or to merge partial results. A loss on it (a z-loss) gets
no gradient, and nothing says so.
"""

import torch

from opforge import Op


def reference(x):
    return torch.softmax(x, -1), torch.logsumexp(x, -1)


def backward(grad_y, y):  # wrong: without grad_total
    return y * (grad_y - (grad_y * y).sum(-1, keepdim=True))


def validate(x):
    if x.dim() == 0:
        raise ValueError("x must have at least one dimension, got a scalar")


op = Op(
    namespace="wrong_ops",
    schema="second_output_ignored(Tensor x) -> (Tensor y, Tensor total)",
    reference=reference,
    backward=backward,
    validate=validate,
    cases=lambda make: [
        (make(*shape),) for shape in [(7,), (5, 33), (4, 128), (2, 3, 17), (64, 9)]
    ],
)
