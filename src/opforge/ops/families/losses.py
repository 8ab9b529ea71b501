# SPDX-License-Identifier: Apache-2.0
"""Code that cross_entropy and linear_cross_entropy share: options, label checks, and the loop of
the latter over chunks of rows."""

from __future__ import annotations

import enum
import math
from typing import Literal

import torch
from torch import Tensor

from opforge import discover, settings
from opforge.ops.families import products
from opforge.ops.families.norms import no_tensor, wide_dtype
from opforge.registration.arguments import can_look_at

Reduction = Literal["none", "mean", "sum"]
REDUCTIONS: tuple[Reduction, ...] = ("none", "mean", "sum")
NONE, MEAN, SUM = range(3)  # codes of reductions in the schema

_SMALL = 1 << 22  # bytes of logits that are too few to be split
_ROWS, _LOW_MEMORY_ROWS = 2048, 640  # the most rows at a time, see rows_at_once


class Wanted(enum.IntFlag):
    """The bits of ``wanted`` in linear_cross_entropy: the gradients to compute."""

    INPUT = 1
    WEIGHT = 2
    BIAS = 4


def validate_options(name: str, label_smoothing: float, z_loss: float, reduction: int) -> None:
    """Raise ValueError for invalid options of a loss."""
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
    """The code of a reduction in the schema."""
    if reduction not in REDUCTIONS:
        raise ValueError(
            f'opforge.{name}: reduction must be "none", "mean" or "sum", got {reduction!r}'
        )
    return REDUCTIONS.index(reduction)


def refuse_probabilities(name: str, target: Tensor, logits: tuple[int, ...], dim: int = -1) -> None:
    """Raise TypeError for a target that torch's cross entropy would interpret as probabilities.

    ``logits`` is the shape of the logits, and ``dim`` the dim of the classes. Converted to
    integers, such a target would become zeros.
    """
    if target.is_floating_point() and tuple(target.shape) == tuple(logits):
        raise TypeError(
            f"opforge.{name}: target has dtype {target.dtype} and the shape of the logits, "
            f"{tuple(logits)}: class probabilities are not supported, only labels (int64). If each "
            f"row of target has one class, give target.argmax({dim}); if it is a smoothed label, "
            "give the label and label_smoothing; otherwise use torch.nn.functional.cross_entropy"
        )


def check_labels(name: str, target: Tensor, classes: int, ignore_index: int) -> None:
    """Raise IndexError for a label out of range, if it can be read without waiting."""
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
    """The matrix, or a copy if strides exceed 32 bits, which torch's products reject or misread."""
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
    """The losses of all rows, and the wanted gradients of their sum, times ``factors``.

    The gradient of the weight is a sum over the chunks, returned in ``weight_dtype``. Its cost per
    element of a bfloat16 weight:

    - ``low_memory``: the sum is the result. It takes 2 bytes, reads and writes 4 per chunk, and is
      rounded to ``weight_dtype`` once per chunk.
    - otherwise: the sum is float32. It takes 4 bytes, which the result reuses (:class:`_Sum`),
      reads and writes 8 per chunk, and is rounded once.

    Two alternatives were rejected. A product over all rows for some classes at a time is rounded
    once and needs no sum, but computes all logits twice, which is a third more work. A bfloat16 sum
    with a bfloat16 remainder takes as much memory as float32, and more passes over it.
    """
    discover.find("cross_entropy")  # loads its kernels
    input, weight = in_reach(input), in_reach(weight)
    rows, classes = input.shape[0], weight.shape[0]
    wide, kernels = wide_dtype(input), torch.ops.opforge
    size = rows_of_chunk(input, classes, pieces, low_memory)
    losses = torch.empty(rows, dtype=wide, device=input.device)
    d_input, d_bias = no_tensor(input), no_tensor(input).to(wide)
    if wanted & Wanted.INPUT:
        d_input = torch.empty_like(input, memory_format=torch.contiguous_format)
    if wanted & Wanted.WEIGHT:
        d_weight = _Sum(weight, weight_dtype if low_memory else wide, weight_dtype)
    if wanted & Wanted.BIAS:
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
        if wanted & Wanted.INPUT:
            torch.mm(d, weight, out=d_input[part])
        if wanted & Wanted.WEIGHT:
            d_weight.add(d, x)
        if wanted & Wanted.BIAS:
            d_bias.add_(d.sum(0, dtype=wide))

    room = input.new_empty(min(size, rows), classes)
    with torch.autocast(input.device.type, enabled=False):
        for first in range(0, rows, size):
            do(slice(first, min(first + size, rows)), room)
    del room
    total = d_weight.result() if wanted & Wanted.WEIGHT else no_tensor(input).to(weight_dtype)
    return losses, d_input, total, d_bias


class _Sum:
    """A sum of products ``d.T @ x`` that is computed in one dtype and returned in another.

    If the result is half as wide, it does not need memory of its own. The sum has two halves, and
    the result overwrites the first one, whose memory is kept. The peak is the sum plus a 32nd of
    its first half.
    """

    def __init__(self, like: Tensor, dtype: torch.dtype, result_dtype: torch.dtype) -> None:
        self._shape, self._dtype = like.shape, result_dtype
        classes, features = like.shape
        halved = dtype.itemsize == 2 * result_dtype.itemsize
        # A multiple of eight keeps the second half of d aligned like the first.
        first = min(classes, -(-classes // 16) * 8) if halved else classes
        self._parts = [
            torch.empty(n, features, dtype=dtype, device=like.device)
            for n in (first, classes - first)
        ]
        self._empty = True

    def add(self, d: Tensor, x: Tensor) -> None:
        """Add ``d.T @ x``."""
        beta = (
            0 if self._empty else 1
        )  # the first product overwrites the memory, which is then not cleared or read
        self._empty = False
        for total, slab in zip(self._parts, d.split([len(p) for p in self._parts], 1), strict=True):
            if total.numel():
                products.add_product(total, slab, x, beta)

    def result(self) -> Tensor:
        """The sum in the result dtype. It can be taken only once."""
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
        # new[a:b] has the memory of old[a/2 : b/2]. As long as b <= 2a, that was read before.
        done = -(-numbers // 16)
        new[:done] = old[:done].to(self._dtype)
        while done < numbers:
            end = min(2 * done, numbers)
            new[done:end] = old[done:end]
            done = end
        new[numbers : numbers + second.numel()] = second.view(-1)
        return new.set_(old.untyped_storage(), 0, self._shape, (self._shape[1], 1))


def rows_of_chunk(input: Tensor, classes: int, pieces: int, low_memory: bool) -> int:
    """The number of rows per chunk, for ``pieces`` chunks or (0) by default."""
    rows = input.shape[0]
    if pieces:
        return max(1, -(-rows // pieces))
    return rows_at_once(rows, classes * input.element_size(), low_memory)


def rows_at_once(rows: int, row_bytes: int, low_memory: bool) -> int:
    """The default number of rows per chunk: a fifth of the rows, up to a fixed limit.

    A chunk reads and writes the sum of the weight's gradients once, and the time of its products is
    proportional to its rows. So the share of time for the sum depends only on the rows. In bfloat16
    on an H200 (700 TFLOP/s, 4.2 TB/s) it is 222 / rows with a float32 sum and 111 / rows with a
    bfloat16 sum: 11% for 2048 rows, 17% for 640. Small logits are split into fewer chunks.
    """
    share = -(-rows // 5)
    if rows >= 4096:
        share = -(-share // 128) * 128  # whole tiles of the matrix products
    share = min(share, _LOW_MEMORY_ROWS if low_memory else _ROWS)
    return max(1, share, min(rows, _SMALL // row_bytes))
