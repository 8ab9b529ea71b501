# SPDX-License-Identifier: Apache-2.0
"""Input sets that tell when something was done to them.

Every tensor lies between two canaries. Just before every timed turn all of them get other values,
from a pool at a random offset and scale: who remembers an answer, or reads too early, is wrong.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import torch

_GUARD = 4096  # bytes on either side; a multiple of every alignment that kernels look for
_CANARY = 0xA5
_REACH = 4096  # elements by which a pool is longer than its tensor


@dataclass(frozen=True)
class DeviceMake:
    """Like :class:`opforge.Make`, drawn on the device: large tensors in no time."""

    dtype: torch.dtype
    device: str

    def __call__(self, *shape: int) -> torch.Tensor:
        """A random tensor of this shape."""
        return torch.randn(shape, dtype=torch.float32, device=self.device).to(self.dtype)


class Guarded:
    """A tensor between canaries, with the strides of ``like``."""

    def __init__(self, like: torch.Tensor, pool: torch.Tensor | None) -> None:
        span = _span(like)
        size = span * like.element_size()
        self._buffer = torch.full(
            (size + 2 * _GUARD,), _CANARY, dtype=torch.uint8, device=like.device
        )
        inner = self._buffer[_GUARD : _GUARD + size]
        self._flat = inner.view(like.dtype) if size else like.new_empty(0)
        self._pool = pool
        self._offset, self._scale = 0, 1.0
        self.tensor = self._flat.as_strided(like.shape, like.stride())
        self._original, self._size = _memory(like), size
        self._restore()

    def change(self, draw: random.Random) -> None:
        """Other values, without a trace in the tensor's version counter."""
        if self._pool is not None:
            self._offset, self._scale = draw.randrange(_REACH), draw.uniform(0.5, 1.0)
            self._restore()

    def _restore(self) -> None:
        if self._pool is None:
            self._flat.data.copy_(self._original)
        else:
            torch.mul(self._given(), self._scale, out=self._flat.data)

    def _given(self) -> torch.Tensor:
        assert self._pool is not None
        return self._pool[self._offset : self._offset + self._flat.numel()]

    def damage(self) -> str:
        """What was done to the tensor or around it; "" if nothing was.

        It is repaired: the next one is not to blame, and the truth is about the right inputs.
        """
        found = ""
        if self._pool is None:
            same = torch.equal(self._flat, self._original)
        else:
            same = torch.equal(self._flat.nan_to_num(), (self._given() * self._scale).nan_to_num())
        if not same:
            self._restore()
            found = "changes its inputs"
        for side in (self._buffer[:_GUARD], self._buffer[_GUARD + self._size :]):
            if bool((side != _CANARY).any()):
                side.fill_(_CANARY)
                found = "writes outside of its tensors: a canary beside an input is gone"
        return found


class InputSet:
    """The arguments of one call, guarded."""

    def __init__(self, case: tuple[Any, ...], pools: list[torch.Tensor | None]) -> None:
        self._guarded = [
            Guarded(a, pool) if isinstance(a, torch.Tensor) else None
            for a, pool in zip(case, pools, strict=True)
        ]
        self.case = tuple(
            a if g is None else g.tensor for a, g in zip(case, self._guarded, strict=True)
        )

    def change(self, draw: random.Random) -> None:
        """Other values everywhere."""
        for g in self._guarded:
            if g is not None:
                g.change(draw)

    def damages(self) -> list[str]:
        """What was done to the tensors; all are looked at, and repaired."""
        found = [g.damage() for g in self._guarded if g is not None]
        return [d for d in found if d]


def make_sets(case: tuple[Any, ...], count: int) -> list[InputSet]:
    """So many sets of one case; they share the pools their values are drawn from."""
    pools = [_pool(a) for a in case]
    return [InputSet(case, pools) for _ in range(count)]


def _pool(value: Any) -> torch.Tensor | None:
    """Values for a tensor and a few more; integers (labels, positions) stay as they are."""
    if not isinstance(value, torch.Tensor) or not value.is_floating_point() or not value.numel():
        return None
    span = _span(value)
    flat = _memory(value)
    return flat.repeat(-(-(span + _REACH) // flat.numel()))[: span + _REACH]


def _memory(tensor: torch.Tensor) -> torch.Tensor:
    """All that lies from a tensor's first element to its last, be they apart or expanded."""
    return tensor.as_strided((_span(tensor),), (1,))


def _span(tensor: torch.Tensor) -> int:
    """Elements from a tensor's first to its last in memory."""
    if not tensor.numel():
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
