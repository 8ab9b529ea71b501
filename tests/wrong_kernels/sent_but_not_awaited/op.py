# SPDX-License-Identifier: Apache-2.0
"""Adds to each tile of a cluster the first elements of all four."""

import torch

from opforge import Op

op = Op(
    schema="add_firsts(Tensor x) -> Tensor y",
    reference=lambda x: (
        x.view(-1, 4, 64) + x.view(-1, 4, 64)[..., :1].sum(1, keepdim=True)
    ).flatten(),
    dtypes=(torch.float32,),
    cases=lambda make: [(make(512),)],
)
