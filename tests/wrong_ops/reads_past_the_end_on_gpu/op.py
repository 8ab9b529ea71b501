# SPDX-License-Identifier: Apache-2.0
"""Twice x; every thread loads the element after its own, too.

For the last element of x that is one past its end. What is there is never used, and it is mostly
mapped memory: the result is right until x is the last thing in its allocation.
"""

import torch

from opforge import Op


def validate(x):
    if x.dim() == 0:
        raise ValueError("x must have at least one dimension, got a scalar")


op = Op(
    namespace="wrong_ops",
    schema="reads_past_the_end_on_gpu(Tensor x) -> Tensor y",
    reference=lambda x: x + x,
    dtypes=(torch.float32,),
    validate=validate,
    cases=lambda make: [
        (make(*shape),) for shape in [(64,), (5, 33), (4, 128), (2, 3, 17), (64, 9)]
    ],
)
