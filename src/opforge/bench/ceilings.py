# SPDX-License-Identifier: Apache-2.0
"""The limits, measured like everybody else: copying the same bytes, reading them, the product."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from opforge import discover
from opforge.errors import OpforgeError
from opforge.op import Cost, Op

COPY, READ, PRODUCT = "copy", "read", "product"
_ROW = 8192  # bytes: what the reading kernel takes as a row
_MOSTLY = 0.05  # an op that writes less than this share of its bytes is one that reads


class Ceiling:
    """A limit that takes its turns: calls over buffers of its own."""

    def __init__(self, calls: list[Callable[[], Any]]) -> None:
        self.calls = calls

    def prepare(self) -> None:
        """Nothing."""


def ceilings(
    op: Op, cost: Cost, case: Sequence[Any], count: int, forward: bool
) -> dict[str, Ceiling]:
    """Those that bound an op which moves so many bytes, over as many buffers as it has inputs."""
    if not cost.bytes:
        return {}
    device = next(a for a in case if isinstance(a, torch.Tensor)).device
    # Copies of odd sizes are up to 7% slower on an H200: the limit is that of a round one.
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
            pass  # no kernel for reading, no compiler to make one: copying must do
    if op.product is not None and forward:
        a, b = op.product(*case)
        found[PRODUCT] = Ceiling([lambda: torch.mm(a, b)] * count)
    return found


def limit(times: dict[str, float]) -> str:
    """Which ceiling is the limit: the product for matrix work, else the fastest way to move."""
    if PRODUCT in times:
        return PRODUCT
    return min(times, key=lambda name: times[name], default="")


def _reader() -> Op:
    return discover.load_folder(Path(__file__).parent / "read").op


def _copy(source: torch.Tensor, target: torch.Tensor) -> Callable[[], Any]:
    return lambda: target.copy_(source)


def _apply(function: Callable[..., Any], argument: Any) -> Callable[[], Any]:
    return lambda: function(argument)
