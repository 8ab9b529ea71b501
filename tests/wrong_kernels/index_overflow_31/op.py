# SPDX-License-Identifier: Apache-2.0
"""The last element of each row."""

import torch

from opforge import Op


def cases(make):
    """More than 2^31 elements, of which only the pages that are touched take memory.

    They come after others, so that a wrapped index does not end the process.
    """
    x = torch.empty(5 * 2**30, dtype=torch.int8)[2**31 :].view(3, 2**30)
    x[:, -1] = torch.tensor([1, 2, 3])
    return [(x,)]


op = Op(
    schema="last_column(Tensor x) -> Tensor y",
    reference=lambda x: x[:, -1].clone(),
    dtypes=(torch.int8,),
    cases=cases,
)
