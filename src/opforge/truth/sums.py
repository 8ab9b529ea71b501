# SPDX-License-Identifier: Apache-2.0
"""Sums in float64 with a smaller error than a kernel may have, and helpers for error bounds."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor


def short_cumsum(x: Tensor, dim: int) -> Tensor:
    """torch.cumsum in blocks, plus the sum of all previous blocks.

    On the CPU, torch adds one by one. Many roundings of equal terms then have the same sign, and
    the float64 truth would be further from the exact sums than a kernel may be.
    """
    n = x.shape[dim] if x.dim() else 0
    if n < 2:
        return torch.cumsum(x, dim)
    size = math.isqrt(n)
    rows = torch.nn.functional.pad(x.movedim(dim, -1), (0, -n % size)).unflatten(-1, (-1, size))
    inside = torch.cumsum(rows, -1)
    before = torch.cumsum(torch.nn.functional.pad(inside[..., :-1, -1], (1, 0)), -1)
    return (inside + before.unsqueeze(-1)).flatten(-2)[..., :n].movedim(-1, dim)


def root_of_squares(add: Callable[..., Tensor], *factors: Tensor) -> Tensor:
    """The square root of a sum of squares by ``add``, scaled so that squares do not overflow."""
    factors = tuple(f.abs() if f.is_complex() else f for f in factors)
    scales = [power_of_two(f) for f in factors]
    squares = add(*((f / s).square() for f, s in zip(factors, scales, strict=True)))
    return squares.clamp(min=0).sqrt() * math.prod(scales)


def power_of_two(x: Tensor) -> float:
    """A power of two that scales the largest finite number of a tensor to between 1 and 2."""
    largest = float(x.detach().abs().nan_to_num(0, 0, 0).amax()) if x.numel() else 0.0
    return math.ldexp(1.0, max(math.frexp(largest)[1] - 1, -1022)) if largest else 1.0
