# SPDX-License-Identifier: Apache-2.0
"""Dropout masks in plain PyTorch: the same bits as ``include/opforge/core/rng.h``."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator

import torch
from torch import Tensor

_LOW = 0xFFFFFFFF
_FACTORS = 0xD2511F53, 0xCD9E8D57
_KEY_STEPS = 0x9E3779B9, 0xBB67AE85
_remembered: dict[tuple[int, int, torch.device], Tensor] | None = None


@contextlib.contextmanager
def remembered() -> Iterator[None]:
    """A context that caches random words, because a check runs a formula dozens of times."""
    global _remembered
    before, _remembered = _remembered, {}
    try:
        yield
    finally:
        _remembered = before


def words(seed: Tensor, count: int) -> Tensor:
    """The first ``count`` words of Philox4x32-10 for the key ``seed``, four per counter from 0 on.

    They are 32-bit numbers in int64, whose products wrap around correctly.
    """
    if _remembered is None:
        return _words(seed, count)
    key = int(seed), count, seed.device
    if key not in _remembered:
        _remembered[key] = _words(seed, count)
    return _remembered[key]


def _words(seed: Tensor, count: int) -> Tensor:
    counter = torch.arange(-(-count // 4), device=seed.device)
    key = seed.reshape(())
    c0, c1 = counter & _LOW, counter >> 32
    c2 = c3 = torch.zeros_like(counter)
    k0, k1 = key & _LOW, key >> 32 & _LOW
    for _ in range(10):
        a, b = c0 * _FACTORS[0], c2 * _FACTORS[1]
        c0, c1 = b >> 32 & _LOW ^ c1 ^ k0, b & _LOW
        c2, c3 = a >> 32 & _LOW ^ c3 ^ k1, a & _LOW
        k0, k1 = k0 + _KEY_STEPS[0] & _LOW, k1 + _KEY_STEPS[1] & _LOW
    return torch.stack([c0, c1, c2, c3], 1).reshape(-1)[:count]


def halves(seed: Tensor, count: int) -> Tensor:
    """16 random bits for each of ``count`` elements. The low half of a word comes first."""
    drawn = words(seed, -(-count // 2))
    return torch.stack([drawn & 0xFFFF, drawn >> 16], 1).reshape(-1)[:count]


def threshold(p: float) -> int:
    """Elements whose 16 bits are below this are dropped: p * 2^16. Only p = 1 drops all."""
    return min(int(p * 65536 + 0.5), 65535) if p < 1 else 65536


def kept(seed: Tensor, shape: torch.Size, p: float) -> Tensor:
    """The mask of elements that are kept, each with probability 1 - p, where p is rounded."""
    return halves(seed, math.prod(shape)).reshape(shape) >= threshold(p)


def scale(p: float) -> float:
    """The factor for kept elements, which preserves the mean."""
    return 65536 / (65536 - threshold(p)) if p < 1 else 0.0


def check_probability(op: str, p: float) -> None:
    """Raise ValueError unless ``p`` is from 0 to 1."""
    if not 0 <= p <= 1:  # also rejects NaN
        raise ValueError(f"opforge.{op}: p is a probability, from 0 to 1; got {p}")


def check_seed(op: str, seed: Tensor, x: Tensor) -> None:
    """Raise ValueError unless ``seed`` is one number."""
    if seed.numel() != 1:
        raise ValueError(
            f"opforge.{op}: seed must have one element, for all of x, which has shape "
            f"{tuple(x.shape)}; got {tuple(seed.shape)}"
        )


def draw_seed(device: torch.device) -> Tensor:
    """A seed from torch's generator, so that manual_seed, checkpoints and CUDA graphs work."""
    return torch.randint(-(2**63), 2**63 - 1, (1,), device=device)
