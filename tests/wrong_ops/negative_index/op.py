# SPDX-License-Identifier: Apache-2.0
"""Rows of a table; where the index is out of range the row is NaN, but the kernel forgets -1.

The largest case has no index, so that a check that looks there alone never hands it one.
"""

import torch

from opforge import Op


def reference(table, index):
    if index is None:
        return table.clone()
    count = table.shape[0]
    rows = table[index.clamp(0, count - 1)]
    return torch.where(((index >= 0) & (index < count))[:, None], rows, torch.nan)


def validate(table, index):
    if table.dim() != 2 or table.shape[0] == 0:
        raise ValueError(f"table has shape {tuple(table.shape)}; it needs two dims, and a row")
    if index is not None and index.dim() != 1:
        raise ValueError(f"index has shape {tuple(index.shape)}; it needs one dim")


def cases(make):
    yield make(40, 33), None
    for rows, cols, count in [(5, 33, 8), (9, 4, 3)]:
        table = make(rows, cols)
        yield table, torch.arange(count, device=table.device) % rows


op = Op(
    namespace="wrong_ops",
    schema="negative_index(Tensor table, Tensor? index) -> Tensor y",
    reference=reference,
    own_dtypes={"index": (torch.int64,)},
    validate=validate,
    cases=cases,
)
