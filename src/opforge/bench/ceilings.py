# SPDX-License-Identifier: Apache-2.0
"""Measures the ceilings in the same run: copying or reading the same bytes, or a matrix product."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from opforge import discover
from opforge.errors import OpforgeError
from opforge.op import Cost, Op

COPY, READ, PRODUCT = "copy", "read", "product"
_ROW = 8192  # bytes of a row of the reading kernel
_MOSTLY = 0.05  # an op that writes a smaller share of its bytes counts as one that only reads


class Ceiling:
    """A ceiling that takes turns like a contender. Its calls use their own buffers."""

    def __init__(self, calls: list[Callable[[], Any]]) -> None:
        self.calls = calls

    def prepare(self) -> None:
        """Do nothing before a turn."""


def ceilings(
    op: Op, cost: Cost, case: Sequence[Any], count: int, forward: bool
) -> dict[str, Ceiling]:
    """The ceilings of an op that moves so many bytes, with as many buffers as it has input sets."""
    if not cost.bytes:
        return {}
    device = next(a for a in case if isinstance(a, torch.Tensor)).device
    # Copies of odd sizes are up to 7% slower on an H200, so the ceiling copies a round size.
    step = 4096 if cost.bytes >= 1 << 20 else 128
    half = max(round(cost.bytes / 2 / step), 1) * step
    sources, targets = (
        [torch.ones(half // 4, device=device) for _ in range(count)] for _ in range(2)
    )
    found = {COPY: Ceiling([_copy(a, b) for a, b in zip(sources, targets, strict=True)])}
    if cost.written < _MOSTLY * cost.bytes:
        read, rows = _reader(), -(-cost.bytes // _ROW)
        views = [torch.ones(rows, _ROW // 4, device=device) for _ in range(count)]
        try:
            read(views[0])
            found[READ] = Ceiling([_apply(read, v) for v in views])
        except OpforgeError:
            pass  # without a compiler there is no reading kernel; copying is the ceiling
    if op.product is not None and forward:
        a, b = op.product(*case)
        found[PRODUCT] = Ceiling([lambda: torch.mm(a, b)] * count)
    return found


def limit(times: dict[str, float]) -> str:
    """The name of the ceiling that counts: the product for matrix work, or the fastest transfer."""
    if PRODUCT in times:
        return PRODUCT
    return min(times, key=lambda name: times[name], default="")


def _reader() -> Op:
    return discover.load_folder(Path(__file__).parent / "read").op


def _copy(source: torch.Tensor, target: torch.Tensor) -> Callable[[], Any]:
    return lambda: target.copy_(source)


def _apply(function: Callable[..., Any], argument: Any) -> Callable[[], Any]:
    return lambda: function(argument)
