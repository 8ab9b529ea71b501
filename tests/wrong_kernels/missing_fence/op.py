# SPDX-License-Identifier: Apache-2.0
"""The sum of all elements, in one launch: the last block to come adds up."""

import torch

from opforge import Op

op = Op(
    schema="total(Tensor x) -> Tensor y",
    reference=lambda x: x.sum().reshape(1),
    dtypes=(torch.float32,),
    cases=lambda make: [(make(500).round(),)],
)
