# SPDX-License-Identifier: Apache-2.0
"""Sums of rows."""

import torch

from opforge import Op

op = Op(
    schema="row_sums(Tensor x) -> Tensor y",
    reference=lambda x: x.sum(1),
    dtypes=(torch.float32,),
    cases=lambda make: [(make(3, 128),)],
)
