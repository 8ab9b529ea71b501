# SPDX-License-Identifier: Apache-2.0
"""What cross_entropy and linear_cross_entropy share: options, a look at the labels; and how the
latter goes through its rows."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from opforge import discover, settings
from opforge.arguments import can_look_at
from opforge.norms import no_tensor, wide_dtype

Reduction = Literal["none", "mean", "sum"]
REDUCTIONS: tuple[Reduction, ...] = ("none", "mean", "sum")
NONE, MEAN, SUM = range(3)  # in the schema
INPUT, WEIGHT, BIAS = 1, 2, 4  # in the `wanted` of linear_cross_entropy

_SMALL = 1 << 22  # bytes of logits that are not worth cutting


def validate_options(name: str, label_smoothing: float, z_loss: float, reduction: int) -> None:
    """Raise for numbers that make no loss; shared with linear_cross_entropy."""
    if not 0 <= label_smoothing <= 1:
        raise ValueError(
            f"opforge.{name}: label_smoothing must be from 0 to 1, got {label_smoothing}"
        )
    if not 0 <= z_loss < math.inf:
        raise ValueError(f"opforge.{name}: z_loss must be finite and not negative, got {z_loss}")
    if reduction not in range(3):
        raise ValueError(
            f"opforge.{name}: reduction must be 0 (none), 1 (mean) or 2 (sum), got {reduction}"
        )


def code_of(name: str, reduction: str) -> int:
    """The schema's number for a reduction."""
    if reduction not in REDUCTIONS:
        raise ValueError(
            f'opforge.{name}: reduction must be "none", "mean" or "sum", got {reduction!r}'
        )
    return REDUCTIONS.index(reduction)


def check_labels(name: str, target: Tensor, classes: int, ignore_index: int) -> None:
    """Raise IndexError for a label out of range, where it can be seen without waiting."""
    if not can_look_at(target) or target.dtype != torch.int64:
        return
    if target.device.type != "cpu" and not settings.check_labels():
        return
    low, high = map(int, target.aminmax())
    if low >= 0 and high < classes:
        return
    wrong = ((target < 0) | (target >= classes)) & (target != ignore_index)
    if wrong.any():
        place = tuple(wrong.nonzero()[0].tolist())
        raise IndexError(
            f"opforge.{name}: target holds {int(target[place])} at {place}, which is neither a "
            f"class, 0 to {classes - 1}, nor ignore_index, {ignore_index}"
        )


def in_reach(matrix: Tensor) -> Tensor:
    """Itself, or a copy: torch's products refuse strides beyond 32 bits or make wild pointers."""
    if max(matrix.stride()) < 2**31:
        return matrix
    return matrix.clone(memory_format=torch.contiguous_format)


def in_chunks(
    input: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None,
    options: tuple[int, float, float],
    pieces: int,
    wanted: int,
    factors: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The losses of all rows, and the gradients wanted of their sum, times ``factors``."""
    discover.find("cross_entropy")  # loads its kernels
    input, weight = in_reach(input), in_reach(weight)
    rows, classes = input.shape[0], weight.shape[0]
    wide, kernels = wide_dtype(input), torch.ops.opforge
    room_of_row = classes * input.element_size()
    size = max(1, -(-rows // pieces)) if pieces else rows_at_once(rows, room_of_row)
    losses = torch.empty(rows, dtype=wide, device=input.device)
    new = [torch.empty_like, torch.zeros_like, torch.zeros_like]
    dtypes = [input.dtype, wide, wide]
    d_input, d_weight, d_bias = (
        make(x, dtype=dtype, memory_format=torch.contiguous_format)
        if x is not None and wanted & bit
        else no_tensor(input).to(dtype)
        for make, x, dtype, bit in zip(
            new, (input, weight, bias), dtypes, (INPUT, WEIGHT, BIAS), strict=True
        )
    )
    if factors is None:
        factors = torch.ones((), dtype=wide, device=input.device).expand(rows)
    room = input.new_empty(min(size, rows), classes)
    with torch.autocast(input.device.type, enabled=False):
        for first in range(0, rows, size):
            part = slice(first, min(first + size, rows))
            x, labels = input[part], target[part]
            logits = room[: x.shape[0]]
            if bias is None:
                torch.mm(x, weight.t(), out=logits)
            else:
                torch.addmm(bias, x, weight.t(), out=logits)
            given = logits, labels
            losses[part], *saved = kernels.cross_entropy.below_autograd(
                *given, *options, NONE, False
            )
            if not wanted:
                continue
            d = kernels.cross_entropy_backward.below_autograd(
                factors[part], *given, *saved, *options, NONE, True
            )
            if wanted & INPUT:
                torch.mm(d, weight, out=d_input[part])
            if wanted & WEIGHT:
                _add_product(d_weight, d, x)
            if wanted & BIAS:
                d_bias += d.sum(0, dtype=wide)
    return losses, d_input, d_weight, d_bias


def _add_product(total: Tensor, d: Tensor, x: Tensor) -> None:
    """``total += d.T @ x``, in the dtype of the total, which is wider for 16-bit numbers."""
    if total.dtype == x.dtype:
        total.addmm_(d.t(), x)
    elif total.device.type == "cuda":
        torch.addmm(total, d.t(), x, out_dtype=total.dtype, out=total)
    else:
        # The CPU has no such product: in float, a sixteenth of the classes at a time.
        x, classes = x.to(total.dtype), -(-d.shape[1] // 16)
        for slab, part in zip(total.split(classes), d.split(classes, 1), strict=True):
            slab.addmm_(part.to(total.dtype).t(), x)


def rows_at_once(rows: int, row_bytes: int) -> int:
    """A fifth of the rows: with it the logits at hand are a tenth of logits and their gradient.

    More at a time would hardly be faster, less means to read and write the sum of the weight's
    gradients more often. Where all of it is small, it is not cut as far.
    """
    share = -(-rows // 5)
    if rows >= 4096:
        share = -(-share // 128) * 128  # whole tiles of the matrix products
    return max(1, share, min(rows, _SMALL // row_bytes))
