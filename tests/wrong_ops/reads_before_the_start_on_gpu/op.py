# SPDX-License-Identifier: Apache-2.0
"""Twice x; a thread loads an element together with the one before it.

The first element has none before it: what lies there is loaded, and thrown away.
"""

import torch

from opforge import Op


def validate(x):
    if x.dim() == 0:
        raise ValueError("x must have at least one dimension, got a scalar")


op = Op(
    namespace="wrong_ops",
    schema="reads_before_the_start_on_gpu(Tensor x) -> Tensor y",
    reference=lambda x: x + x,
    dtypes=(torch.float32,),
    validate=validate,
    cases=lambda make: [
        (make(*shape),) for shape in [(64,), (5, 33), (4, 128), (2, 3, 17), (64, 9)]
    ],
)
