# SPDX-License-Identifier: Apache-2.0
"""quantize_fp8: a matrix as FP8 numbers with scales, its transpose, or both.

The scale of a row (or of the tensor) is its largest finite size / 448 for E4M3, / 57344 for E5M2;
of zeros it is 1. Numbers are rounded to nearest, ties to even. NaN stays, an infinity becomes NaN
in E4M3, and neither affects a scale.

Bytes: rows alone take one launch that reads x once; of more than 8192 columns, those beyond are
read again from the cache. All else reads x twice: for the largest sizes, and for the results.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor

from opforge.op import Build, Make, Op
from opforge.ops.families import float8
from opforge.ops.families.products import rows_of


def reference(
    x: Tensor, e5m2: bool, per_row: bool, rows: bool, columns: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The rows of x and the rows of its transpose, each with its own scales."""
    matrix, dtype = rows_of(x), float8.dtype_of(e5m2)

    def one(wanted: bool, matrix: Tensor) -> tuple[Tensor, Tensor]:
        if not wanted:
            return x.new_empty(0, dtype=torch.float32), x.new_empty(0, dtype=torch.uint8)
        bits, scale = float8.quantise(matrix, dtype, per_row)
        return scale, float8.padded(bits)

    return *one(rows, matrix), *one(columns, matrix.t())


def validate(x: Tensor, rows: bool, columns: bool) -> None:
    """There is something to compute."""
    if x.dim() == 0:
        raise ValueError("opforge.quantize_fp8: x must have at least one dimension, got a scalar")
    if not rows and not columns:
        raise ValueError("opforge.quantize_fp8: rows, columns or both must be wanted, got neither")


def cases(make: Make) -> Iterator[tuple[Any, ...]]:
    """Both types, both scalings, rows, columns or both; sizes around a tile's; strided, empty."""
    yield make(5, 40), False, True, True, False
    yield make(3, 1100), True, True, True, False
    yield make(2, 8200), False, True, True, False  # more than a block keeps
    yield make(130, 72), False, True, True, True
    yield make(2, 9, 31), True, True, True, True  # unaligned
    yield make(33, 65), False, False, True, True
    yield make(19, 48), True, False, True, False
    yield make(40, 24).t(), False, True, True, False
    yield make(24, 40).t(), True, True, False, True
    yield make(16, 48)[:, ::2], False, True, True, True
    yield make(7), False, True, True, False
    yield make(0, 8), False, True, True, True
    yield make(3, 0), True, False, True, True
    zeros = make(6, 16)
    zeros.detach()[::2] = 0
    yield zeros, False, True, True, True


def sized(make: Make, rows: int, cols: int) -> dict[str, tuple[Any, ...]]:
    """What inference needs, and what training needs."""
    x = make(rows, cols)
    return {
        "rows": (x, False, True, True, False),
        "rows and columns": (x, False, True, True, True),
        "tensor": (x, False, False, True, False),
    }


op = Op(
    schema="quantize_fp8(Tensor x, bool e5m2, bool per_row, bool rows, bool columns) "
    "-> (Tensor scale, Tensor q, Tensor scale_t, Tensor q_t)",
    reference=reference,
    validate=validate,
    cases=cases,
    operations=lambda x: 2 * x.numel(),
    sized=sized,
    build=Build(by_dtype=["cuda"]),
)


def quantize_fp8(
    x: Tensor,
    dtype: torch.dtype = torch.float8_e4m3fn,
    scaling: Literal["row", "tensor"] = "row",
    *,
    transposed: bool = False,
) -> tuple[Tensor, ...]:
    """FP8 numbers and float32 scales: ``q.float() * scale`` is near ``x``.

    It is not differentiable; :func:`opforge.fp8_linear` is.

    Args:
        x: (..., features). Rows are along the last dim.
        dtype: ``torch.float8_e4m3fn`` (up to 448) or ``torch.float8_e5m2`` (up to 57344).
        scaling: a scale per "row" or one for the "tensor".
        transposed: also return the transpose of x as a matrix, (features, rows), and its scales
            (features, 1). Each scale is then that of a column of x.

    Returns:
        ``q`` in the shape of x, whose rows begin at multiples of 16 bytes, and ``scale``:
        (..., 1), or without dims for "tensor". With ``transposed`` the same of the transpose.
    """
    if dtype not in float8.MOST:
        raise TypeError(
            "opforge.quantize_fp8: dtype must be torch.float8_e4m3fn or torch.float8_e5m2, "
            f"got {dtype}"
        )
    per_row = float8.by_row("quantize_fp8", scaling)
    scale, bits, scale_t, bits_t = op(x, dtype == float8.E5M2, per_row, True, transposed)
    rows = math.prod(x.shape[:-1])

    def shaped(bits: Tensor, scale: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        q = bits[:, : shape[-1]].view(dtype)
        leading = shape[:-1]
        q = q.unflatten(0, leading) if leading else q[0]
        return q, scale.view(*leading, 1) if per_row else scale.view(())

    found = shaped(bits, scale, tuple(x.shape))
    if not transposed:
        return found
    return *found, *shaped(bits_t, scale_t, (x.shape[-1], rows))
