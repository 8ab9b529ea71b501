# SPDX-License-Identifier: Apache-2.0
"""A bias for every column."""

import torch

from opforge import Op

op = Op(
    schema="add_bias(Tensor x, Tensor bias) -> Tensor y",
    reference=lambda x, bias: x + bias,
    dtypes=(torch.float32,),
    cases=lambda make: [(make(6, 20), make(20))],
)
