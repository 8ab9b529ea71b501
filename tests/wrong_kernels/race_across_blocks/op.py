# SPDX-License-Identifier: Apache-2.0
"""The sum of all elements."""

import torch

from opforge import Op

op = Op(
    schema="total(Tensor x) -> Tensor y",
    reference=lambda x: x.sum().reshape(1),
    dtypes=(torch.float32,),
    cases=lambda make: [(make(500).round(),)],
)
