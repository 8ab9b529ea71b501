# SPDX-License-Identifier: Apache-2.0
"""x minus the mean of its row."""

import torch

from opforge import Op

op = Op(
    schema="centre_rows(Tensor x) -> Tensor y",
    reference=lambda x: x - x.mean(1, keepdim=True),
    dtypes=(torch.float32,),
    cases=lambda make: [(make(5, 64),)],
)
