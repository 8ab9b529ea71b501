# SPDX-License-Identifier: Apache-2.0
"""For each of 32 queries, the sum of its distances to all keys."""

import torch

from opforge import Op

op = Op(
    schema="distances(Tensor query, Tensor key) -> Tensor y",
    reference=lambda query, key: (query[:, None] - key).abs().sum(1),
    dtypes=(torch.float32,),
    cases=lambda make: [(make(32).round(), make(4 * 32).round())],
)
