# SPDX-License-Identifier: Apache-2.0
"""Differences of neighbours: y[i] = x[i] - x[i - 1]."""

import torch

from opforge import Op

op = Op(
    schema="differences(Tensor x) -> Tensor y",
    reference=lambda x: torch.diff(x, prepend=x.new_zeros(1)),
    dtypes=(torch.float32,),
    cases=lambda make: [(make(200),)],
)
