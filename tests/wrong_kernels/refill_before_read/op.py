# SPDX-License-Identifier: Apache-2.0
"""Doubles every element, a tile at a time through shared memory."""

import torch

from opforge import Op

op = Op(
    schema="twice(Tensor x) -> Tensor y",
    reference=lambda x: 2 * x,
    dtypes=(torch.float32,),
    cases=lambda make: [(make(512),)],
)
