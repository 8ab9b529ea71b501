# SPDX-License-Identifier: Apache-2.0
"""The random numbers of include/opforge/rng.h in plain PyTorch: what kernels must drop and keep."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

_FACTORS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_WORD = 0xFFFFFFFF


def words(seed: Tensor, count: int) -> Tensor:
    """The words of elements 0 to ``count`` - 1, as int64: Philox4x32-10 by element number."""
    calls = torch.arange(-(-count // 4), dtype=torch.int64, device=seed.device)
    c0, c1 = calls & _WORD, calls >> 32
    c2 = c3 = torch.zeros_like(calls)
    k0, k1 = seed & _WORD, (seed >> 32) & _WORD
    for _ in range(_ROUNDS):
        (high0, low0), (high1, low1) = _product(_FACTORS[0], c0), _product(_FACTORS[1], c2)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _KEY_STEPS[0]) & _WORD, (k1 + _KEY_STEPS[1]) & _WORD
    return torch.stack([c0, c1, c2, c3], -1).reshape(-1)[:count]


def keep(seed: Tensor, shape: Sequence[int], p: float) -> Tensor:
    """Which elements of a tensor stay when each is dropped with probability ``p``."""
    count = math.prod(shape)
    threshold = p * 2.0**32
    if threshold >= _WORD:
        return torch.zeros(shape, dtype=torch.bool, device=seed.device)
    return (words(seed, count) >= int(threshold)).reshape(shape)


def _product(a: int, b: Tensor) -> tuple[Tensor, Tensor]:
    """High and low word of a product of words; all of it would not fit an int64."""
    low_part, high_part = a * (b & 0xFFFF), a * (b >> 16)  # of 48 bits each
    sum_ = low_part + ((high_part & 0xFFFF) << 16)
    return (high_part >> 16) + (sum_ >> 32), sum_ & _WORD
