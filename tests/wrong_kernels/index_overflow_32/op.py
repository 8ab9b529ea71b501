# SPDX-License-Identifier: Apache-2.0
"""The first element of every piece of 2^28 elements."""

import torch

from opforge import Op


def cases(make):
    """More than 2^32 elements; only pages that are touched take memory."""
    x = torch.empty(17 * 2**28, dtype=torch.int8)
    x[:: 2**28] = torch.arange(17)
    return [(x,)]


op = Op(
    schema="piece_heads(Tensor x) -> Tensor y",
    reference=lambda x: x[:: 2**28].clone(),
    dtypes=(torch.int8,),
    cases=cases,
)
