# SPDX-License-Identifier: Apache-2.0
"""The module that holds the angles of rotary position embedding."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import opforge


class RotaryEmbedding(nn.Module):
    """:func:`opforge.rope` with tables of its own: angles of ``position * base^(-2j / dim)``.

    The tables are float32 and no part of the state_dict; ``to(dtype)`` rounds them like any buffer.

    Args:
        dim: the rotary dim, even; heads may be longer, their rest is copied.
        max_positions: rows of the tables.
        base: of the angles' geometric series.
        interleaved: pairs are (2j, 2j + 1), not (j, j + dim / 2).
    """

    cos: Tensor
    sin: Tensor

    def __init__(
        self,
        dim: int,
        max_positions: int = 4096,
        base: float = 10000.0,
        interleaved: bool = False,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        if dim < 2 or dim % 2:
            raise ValueError(f"dim must be even and at least 2, got {dim}")
        if max_positions < 1:
            raise ValueError(f"max_positions must be at least 1, got {max_positions}")
        if not base > 0:
            raise ValueError(f"base must be positive, got {base}")
        self.dim, self.max_positions, self.base = dim, max_positions, base
        self.interleaved = interleaved
        # In float64: float32 has no digits left for the angle of a late position.
        powers = torch.arange(0, dim, 2, dtype=torch.float64, device=device) / dim
        at = torch.arange(max_positions, dtype=torch.float64, device=device)
        angles = torch.outer(at, base**-powers)
        self.register_buffer("cos", angles.cos().float(), persistent=False)
        self.register_buffer("sin", angles.sin().float(), persistent=False)

    def forward(
        self, q: Tensor, k: Tensor | None = None, positions: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Turn ``q`` and ``k``, (..., seq, heads, head dim), by the angles of their positions."""
        turned: tuple[Tensor, Tensor | None] = opforge.rope(
            q, k, self.cos, self.sin, positions, self.interleaved
        )
        return turned

    def extra_repr(self) -> str:
        """What repr() shows of the arguments."""
        return (
            f"{self.dim}, max_positions={self.max_positions}, base={self.base:g}, "
            f"interleaved={self.interleaved}"
        )
