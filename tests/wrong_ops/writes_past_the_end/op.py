# SPDX-License-Identifier: Apache-2.0
"""The sum of each row by way of 64 partial sums; the loop that clears them runs once too often.

The element past the end of the workspace mostly belongs to nobody: allocators round sizes up.
"""

import torch

from opforge import Op


def validate(x):
    if x.dim() == 0:
        raise ValueError("x must have at least one dimension, got a scalar")


op = Op(
    namespace="wrong_ops",
    schema="writes_past_the_end(Tensor x) -> Tensor y",
    reference=lambda x: x.sum(-1),
    rowwise=True,
    dtypes=(torch.float32,),
    validate=validate,
    cases=lambda make: [
        (make(*shape),) for shape in [(64,), (5, 33), (4, 128), (2, 3, 17), (64, 9)]
    ],
)
