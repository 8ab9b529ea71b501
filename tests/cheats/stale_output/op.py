# SPDX-License-Identifier: Apache-2.0
"""Computes a few times, then hands out memory that holds an old answer."""

import torch

from opforge import Op

op = Op(
    schema="stale_output(Tensor x) -> Tensor y",
    reference=lambda x: 2 * x,
    dtypes=(torch.float32,),
    sized=lambda make, *shape: (make(*shape),),
)
