# SPDX-License-Identifier: Apache-2.0
"""Rows of 32 elements, divided by their first."""

import torch

from opforge import Op

op = Op(
    schema="divide_by_first(Tensor x) -> Tensor y",
    reference=lambda x: x / x[:, :1],
    dtypes=(torch.float32,),
    cases=lambda make: [(make(4, 32),)],
)
