# SPDX-License-Identifier: Apache-2.0
"""Differences of neighbours; the kernel writes the first of a row before it asks if there is one.

For an empty tensor the data pointer is null, and the process dies. Empty batches come up at the
end of an epoch, after a filter, on a rank without work.
"""

import torch

from opforge import Op


def validate(x):
    if x.dim() == 0:
        raise ValueError("x must have at least one dimension, got a scalar")


op = Op(
    namespace="wrong_ops",
    schema="crashes_when_empty(Tensor x) -> Tensor y",
    reference=lambda x: torch.diff(x, prepend=torch.zeros_like(x[..., :1])),
    validate=validate,
    cases=lambda make: [
        (make(*shape),) for shape in [(7,), (5, 33), (4, 128), (2, 3, 17), (64, 9)]
    ],
)
