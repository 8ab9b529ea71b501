# SPDX-License-Identifier: Apache-2.0
"""row_max: the maximum of each row of 2048 floats. It takes as long as reading them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from opforge.op import Make, Op

WIDTH = 2048  # floats: 8 KB, which a warp reads with sixteen 16-byte loads per thread


def validate(x: Tensor) -> None:
    """x is contiguous, with rows of 2048 elements."""
    if x.dim() != 2 or x.shape[1] != WIDTH or not x.is_contiguous():
        raise ValueError(
            f"row_max: x must be contiguous, of shape (rows, {WIDTH}); got {tuple(x.shape)}"
        )


def cases(make: Make) -> Iterator[tuple[Any, ...]]:
    """Few rows, and more rows than a block processes."""
    for rows in (1, 3, 33):
        yield (make(rows, WIDTH),)


op = Op(
    schema="row_max(Tensor x) -> Tensor y",
    reference=lambda x: x.amax(-1),
    dtypes=(torch.float32,),
    validate=validate,
    cases=cases,
    namespace="opforge_bench",
)
