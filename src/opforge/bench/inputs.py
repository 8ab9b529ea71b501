# SPDX-License-Identifier: Apache-2.0
"""Input sets with canaries and changing values, which reveal implementations that cheat.

Every tensor lies between two canaries. Just before every timed turn, all tensors get new values, so
that a remembered result, or one that is computed too early, is wrong. Values of a plain random
tensor come from a pool, with a random offset and scale. Other tensors (labels, a triangular matrix,
a table of sines) could lose their meaning that way, so they alternate between a few complete draws.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

_GUARD = 4096  # bytes on each side; a multiple of every alignment that kernels check
_CANARY = 0xA5
_REACH = 4096  # a pool has this many more elements than its tensor
_DRAWS = 3  # draws of a tensor whose values cannot come from a pool


@dataclass(frozen=True)
class DeviceMake:
    """Like :class:`opforge.Make`, but draws values on the device, which is fast.

    ``requires_grad`` says whether the backward is to be timed. Its tensors are no leaves yet.
    """

    dtype: torch.dtype
    device: str
    requires_grad: bool = False
    made: list[torch.Tensor] = field(default_factory=list, repr=False)

    def __call__(self, *shape: int) -> torch.Tensor:
        """A random tensor of this shape."""
        tensor = torch.randn(shape, dtype=torch.float32, device=self.device).to(self.dtype)
        self.made.append(tensor)
        return tensor


class Guarded:
    """A tensor between canaries, with the strides of ``like``."""

    def __init__(self, like: torch.Tensor, source: _Source) -> None:
        self._source = source
        span = _span(like)
        self._size = span * like.element_size()
        self._buffer = torch.full(
            (self._size + 2 * _GUARD,), _CANARY, dtype=torch.uint8, device=like.device
        )
        inner = self._buffer[_GUARD : _GUARD + self._size]
        self._flat = inner.view(like.dtype) if self._size else like.new_empty(0)
        self.tensor = self._flat.as_strided(like.shape, like.stride())
        self._choice: _Choice = (0, 1.0)
        self._restore()

    def change(self, draw: random.Random) -> None:
        """Set new values without changing the tensor's version counter."""
        self._choice = self._source.choose(draw)
        self._restore()

    def _restore(self) -> None:
        self._flat.data.copy_(self._source.values(self._choice, self._flat.numel()))

    def damage(self) -> str:
        """Describe damage to the tensor or its canaries, or return "".

        Damage is repaired, so that the next contender is not blamed and the truth is for the right
        inputs.
        """
        found = ""
        right = self._source.values(self._choice, self._flat.numel())
        same = torch.equal(_comparable(self._flat), _comparable(right))
        if not same:
            self._restore()
            found = "changes its inputs"
        for side in (self._buffer[:_GUARD], self._buffer[_GUARD + self._size :]):
            if bool((side != _CANARY).any()):
                side.fill_(_CANARY)
                found = "writes outside of its tensors: a canary beside an input is gone"
        return found


_Choice = tuple[int, float]


class _Pool:
    """Random values for a tensor, and a few more."""

    def __init__(self, tensor: torch.Tensor) -> None:
        flat = _memory(tensor)
        more = flat.repeat(-(-_REACH // flat.numel()))[:_REACH]
        self._values = torch.cat([flat, more])

    def choose(self, draw: random.Random) -> _Choice:
        return draw.randrange(_REACH), draw.uniform(0.5, 1.0)

    def values(self, choice: _Choice, count: int) -> torch.Tensor:
        offset, scale = choice
        return self._values[offset : offset + count] * scale


class _Draws:
    """A few complete tensors from the record."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self._values = [_memory(t) for t in tensors]

    def choose(self, draw: random.Random) -> _Choice:
        return draw.randrange(len(self._values)), 1.0

    def values(self, choice: _Choice, count: int) -> torch.Tensor:
        return self._values[choice[0]]


_Source = _Pool | _Draws


class InputSet:
    """The arguments of one call, with canaries."""

    def __init__(self, case: tuple[Any, ...], sources: list[_Source | None]) -> None:
        self._guarded = [
            None if source is None else Guarded(a, source)
            for a, source in zip(case, sources, strict=True)
        ]
        self.case = tuple(
            a if g is None else g.tensor for a, g in zip(case, self._guarded, strict=True)
        )

    def change(self, draw: random.Random) -> None:
        """Set new values in all tensors."""
        for g in self._guarded:
            if g is not None:
                g.change(draw)

    def damages(self) -> list[str]:
        """Descriptions of the damage to the tensors, all of which are repaired."""
        found = [g.damage() for g in self._guarded if g is not None]
        return [d for d in found if d]


def make_sets(
    make: DeviceMake, cases: Callable[[DeviceMake], tuple[Any, ...]], count: int
) -> list[InputSet]:
    """Make ``count`` input sets of one case. They share the sources of their values."""
    case = cases(make)
    made = {id(t) for t in make.made}
    shifted = [id(a) in made and a.numel() > 0 for a in case]
    others = any(isinstance(a, torch.Tensor) and not s for a, s in zip(case, shifted, strict=True))
    draws = [case, *(cases(make) for _ in range(_DRAWS - 1 if others else 0))]
    sources: list[_Source | None] = []
    for i, value in enumerate(case):
        if not isinstance(value, torch.Tensor):
            sources.append(None)
        elif shifted[i]:
            sources.append(_Pool(value))
        else:  # a draw can only replace the first one if shape and strides are the same
            alike = [d[i] for d in draws if _alike(d[i], value)]
            sources.append(_Draws(alike))
    make.made.clear()
    return [InputSet(case, sources) for _ in range(count)]


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (one.shape, one.stride(), one.dtype) == (other.shape, other.stride(), other.dtype)


def _comparable(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor without NaN, which does not equal itself."""
    return tensor.nan_to_num() if tensor.is_floating_point() else tensor


def _memory(tensor: torch.Tensor) -> torch.Tensor:
    """The memory from a tensor's first to its last element, with any gaps."""
    return tensor.as_strided((_span(tensor),), (1,))


def _span(tensor: torch.Tensor) -> int:
    """The number of elements from a tensor's first to its last one in memory."""
    if not tensor.numel():
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
