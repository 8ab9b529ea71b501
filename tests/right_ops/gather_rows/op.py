# SPDX-License-Identifier: Apache-2.0
"""Rows of a table by integers, int32 or int64; an index that is no row gives a row of zeros."""

import torch

from opforge import Op


def reference(table, index):
    valid = (index >= 0) & (index < table.shape[0])
    rows = table[torch.where(valid, index, 0).long()]
    return torch.where(valid.unsqueeze(-1), rows, 0)


def validate(table, index):
    if table.dim() != 2 or table.shape[0] == 0 or index.dim() != 1:
        raise ValueError(
            "table must be a matrix of at least one row, index a vector; they have shapes "
            f"{tuple(table.shape)} and {tuple(index.shape)}"
        )


def cases(make):
    for rows, cols, count in [(5, 33, 12), (9, 4, 100), (3, 128, 1), (70, 7, 0)]:
        chosen = torch.arange(count) * (make.seed + 7) % (rows + 2) - 1
        yield make(rows, cols), chosen.to(make.device)
        yield make(rows, cols), chosen.to(make.device, torch.int32)


op = Op(
    namespace="right_ops",
    schema="gather_rows(Tensor table, Tensor index) -> Tensor y",
    reference=reference,
    own_dtypes={"index": (torch.int64, torch.int32)},
    validate=validate,
    cases=cases,
)
