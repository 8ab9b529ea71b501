# SPDX-License-Identifier: Apache-2.0
"""Writes behind its input, where somebody else's data may lie."""

import torch

from opforge import Op

op = Op(
    schema="out_of_bounds(Tensor x) -> Tensor y",
    reference=lambda x: 2 * x,
    dtypes=(torch.float32,),
    sized=lambda make, *shape: (make(*shape),),
)
