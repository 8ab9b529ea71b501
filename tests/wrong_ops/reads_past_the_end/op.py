# SPDX-License-Identifier: Apache-2.0
"""Twice x; the kernel loads elements in pairs and uses the first of each.

With the last element of x it loads the one past its end. That is never used, and mostly mapped
memory: the result is right until x is the last thing on a page.
"""

import torch

from opforge import Op


def validate(x):
    if x.dim() == 0:
        raise ValueError("x must have at least one dimension, got a scalar")


op = Op(
    namespace="wrong_ops",
    schema="reads_past_the_end(Tensor x) -> Tensor y",
    reference=lambda x: x + x,
    dtypes=(torch.float32,),
    validate=validate,
    cases=lambda make: [
        (make(*shape),) for shape in [(64,), (5, 33), (4, 128), (2, 3, 17), (64, 9)]
    ],
)
