# SPDX-License-Identifier: Apache-2.0
"""The sum of up to 32 elements, by one warp."""

import torch

from opforge import Op

op = Op(
    schema="warp_total(Tensor x) -> Tensor y",
    reference=lambda x: x.sum().reshape(1),
    dtypes=(torch.float32,),
    cases=lambda make: [(make(20).round(),)],
)
