# SPDX-License-Identifier: Apache-2.0
"""What cross_entropy and linear_cross_entropy share: options, a look at the labels; and how the
latter goes through its rows."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from opforge import discover, settings
from opforge.ops.families.norms import no_tensor, wide_dtype
from opforge.registration.arguments import can_look_at

Reduction = Literal["none", "mean", "sum"]
REDUCTIONS: tuple[Reduction, ...] = ("none", "mean", "sum")
NONE, MEAN, SUM = range(3)  # in the schema
INPUT, WEIGHT, BIAS = 1, 2, 4  # in the `wanted` of linear_cross_entropy

_SMALL = 1 << 22  # bytes of logits that are not worth cutting
_ROWS, _LOW_MEMORY_ROWS = 2048, 640  # the most at a time, see rows_at_once


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


def refuse_probabilities(name: str, target: Tensor, logits: tuple[int, ...], dim: int = -1) -> None:
    """Raise TypeError for a target that torch's cross entropy would take as probabilities.

    ``logits`` is their shape, ``dim`` that of the classes. Converted to integers, as other floats
    can be, such a target would be zeros.
    """
    if target.is_floating_point() and tuple(target.shape) == tuple(logits):
        raise TypeError(
            f"opforge.{name}: target has dtype {target.dtype} and the shape of the logits, "
            f"{tuple(logits)}: class probabilities are not supported, only labels (int64). If each "
            f"row of target has one class, give target.argmax({dim}); if it is a smoothed label, "
            "give the label and label_smoothing; else use torch.nn.functional.cross_entropy"
        )


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
    low_memory: bool,
    wanted: int,
    factors: Tensor,
    weight_dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The losses of all rows, and the gradients wanted of their sum, times ``factors``.

    The weight's gradient is a sum over the chunks, returned in ``weight_dtype``. What it costs for
    bfloat16, per element of the weight:

    - ``low_memory``: the sum is the result. 2 bytes, 4 read and written per chunk, rounded to
      ``weight_dtype`` once per chunk.
    - otherwise: the sum is float32. 4 bytes, which the result takes over (:class:`_Sum`), 8 read
      and written per chunk, rounded once.

    Not chosen: a product over all rows for some classes at a time is rounded once and needs no
    sum, but makes all logits twice, a third more work. A bfloat16 sum with a bfloat16 remainder
    takes the memory of float32, and more passes over it.
    """
    discover.find("cross_entropy")  # loads its kernels
    input, weight = in_reach(input), in_reach(weight)
    rows, classes = input.shape[0], weight.shape[0]
    wide, kernels = wide_dtype(input), torch.ops.opforge
    size = rows_of_chunk(input, classes, pieces, low_memory)
    losses = torch.empty(rows, dtype=wide, device=input.device)
    d_input, d_bias = no_tensor(input), no_tensor(input).to(wide)
    if wanted & INPUT:
        d_input = torch.empty_like(input, memory_format=torch.contiguous_format)
    if wanted & WEIGHT:
        d_weight = _Sum(weight, weight_dtype if low_memory else wide, weight_dtype)
    if wanted & BIAS:
        d_bias = input.new_zeros(classes, dtype=wide)

    def do(part: slice, room: Tensor) -> None:
        x, labels = input[part], target[part]
        logits = room[: x.shape[0]]
        if bias is None:
            torch.mm(x, weight.t(), out=logits)
        else:
            torch.addmm(bias, x, weight.t(), out=logits)
        given = logits, labels
        losses[part], *saved = kernels.cross_entropy.below_autograd(*given, *options, NONE, False)
        if not wanted:
            return
        d = kernels.cross_entropy_backward.below_autograd(
            factors[part], *given, *saved, *options, NONE, True
        )
        if wanted & INPUT:
            torch.mm(d, weight, out=d_input[part])
        if wanted & WEIGHT:
            d_weight.add(d, x)
        if wanted & BIAS:
            d_bias.add_(d.sum(0, dtype=wide))

    room = input.new_empty(min(size, rows), classes)
    with torch.autocast(input.device.type, enabled=False):
        for first in range(0, rows, size):
            do(slice(first, min(first + size, rows)), room)
    del room
    total = d_weight.result() if wanted & WEIGHT else no_tensor(input).to(weight_dtype)
    return losses, d_input, total, d_bias


class _Sum:
    """A sum of products ``d.T @ x`` that is made in one dtype and wanted in another.

    If the wanted one is half as wide, sum and result never exist side by side: the sum is in two
    halves, and the result is written over the first, whose memory is all that is kept. So the
    most that exists is the sum, and a 32nd of its first half.
    """

    def __init__(self, like: Tensor, dtype: torch.dtype, result_dtype: torch.dtype) -> None:
        self._shape, self._dtype = like.shape, result_dtype
        classes, features = like.shape
        halved = dtype.itemsize == 2 * result_dtype.itemsize
        # Of eights, which keeps the second half of d as aligned as the first.
        first = min(classes, -(-classes // 16) * 8) if halved else classes
        self._parts = [
            torch.empty(n, features, dtype=dtype, device=like.device)
            for n in (first, classes - first)
        ]
        self._empty = True

    def add(self, d: Tensor, x: Tensor) -> None:
        """Add ``d.T @ x``."""
        beta = 0 if self._empty else 1  # the first need not read what is there, nor clear it before
        self._empty = False
        for total, slab in zip(self._parts, d.split([len(p) for p in self._parts], 1), strict=True):
            if total.numel():
                _add_product(total, slab, x, beta)

    def result(self) -> Tensor:
        """The sum in the wanted dtype; it can be taken once."""
        first, second = self._parts
        self._parts = []
        if self._empty:
            first.zero_()
            second.zero_()
        if not second.numel():
            return first.view(self._shape).to(self._dtype)
        numbers = first.numel()
        old = first.view(-1)
        new = torch.empty(0, dtype=self._dtype, device=old.device)
        new.set_(old.untyped_storage(), 0, (2 * numbers,), (1,))
        # new[a:b] lies where old[a/2 : b/2] does: as long as b <= 2a, that was read before.
        done = -(-numbers // 16)
        new[:done] = old[:done].to(self._dtype)
        while done < numbers:
            end = min(2 * done, numbers)
            new[done:end] = old[done:end]
            done = end
        new[numbers : numbers + second.numel()] = second.view(-1)
        return new.set_(old.untyped_storage(), 0, self._shape, (self._shape[1], 1))


def _add_product(total: Tensor, d: Tensor, x: Tensor, beta: int) -> None:
    """``total = beta * total + d.T @ x``, in the dtype of the total, which may be wider."""
    if total.dtype == x.dtype:
        total.addmm_(d.t(), x, beta=beta)
    elif total.device.type == "cuda":
        torch.addmm(total, d.t(), x, beta=beta, out_dtype=total.dtype, out=total)
    else:
        # The CPU has no such product: in float, an eighth of the classes at a time.
        x, classes = x.to(total.dtype), -(-d.shape[1] // 8)
        for slab, part in zip(total.split(classes), d.split(classes, 1), strict=True):
            slab.addmm_(part.to(total.dtype).t(), x, beta=beta)


def rows_of_chunk(input: Tensor, classes: int, pieces: int, low_memory: bool) -> int:
    """How many rows have logits at a time: those of one of so many pieces, or as chosen."""
    rows = input.shape[0]
    if pieces:
        return max(1, -(-rows // pieces))
    return rows_at_once(rows, classes * input.element_size(), low_memory)


def rows_at_once(rows: int, row_bytes: int, low_memory: bool) -> int:
    """A fifth of the rows, up to a number that does not depend on them.

    A chunk reads and writes the sum of the weight's gradients, and its products take a time in
    proportion to its rows: how much of the time that costs depends on the rows alone. In bfloat16
    on an H200 (700 TFLOP/s, 4.2 TB/s) it is 222 / rows with a float32 sum and 111 / rows with one
    in bfloat16: 11% for 2048 rows, 17% for 640. Where all of it is small, it is not cut as far.
    """
    share = -(-rows // 5)
    if rows >= 4096:
        share = -(-share // 128) * 128  # whole tiles of the matrix products
    share = min(share, _LOW_MEMORY_ROWS if low_memory else _ROWS)
    return max(1, share, min(rows, _SMALL // row_bytes))
