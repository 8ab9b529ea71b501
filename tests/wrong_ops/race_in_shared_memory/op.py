# SPDX-License-Identifier: Apache-2.0
"""Differences of neighbours; a thread reads its neighbour's element from shared memory without
waiting for it.

It works as long as threads of a warp run in step, and as long as warps happen to come in order.
"""

import torch

from opforge import Op


def validate(x):
    if x.dim() == 0:
        raise ValueError("x must have at least one dimension, got a scalar")


op = Op(
    namespace="wrong_ops",
    schema="race_in_shared_memory(Tensor x) -> Tensor y",
    reference=lambda x: torch.diff(x, prepend=torch.zeros_like(x[..., :1])),
    validate=validate,
    cases=lambda make: [
        (make(*shape),) for shape in [(7,), (5, 33), (4, 128), (2, 3, 17), (64, 9)]
    ],
)
