# SPDX-License-Identifier: Apache-2.0
"""The rotary position embedding module, which holds the table of angles."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import opforge


class RotaryEmbedding(nn.Module):
    """:func:`opforge.rope` with its tables of the angles ``position * base^(-2j / dim)``.

    The tables are float32 and not in the state_dict. ``to(dtype)`` rounds them like any buffer.

    Args:
        dim: the rotary dim, which is even. If heads are longer, their rest is copied.
        max_positions: number of rows of the tables.
        base: base of the geometric series of the angles.
        interleaved: pairs are (2j, 2j + 1) instead of (j, j + dim / 2).
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
        # In float64, because float32 is too inexact for the angles of late positions.
        powers = torch.arange(0, dim, 2, dtype=torch.float64, device=device) / dim
        at = torch.arange(max_positions, dtype=torch.float64, device=device)
        angles = torch.outer(at, base**-powers)
        self.register_buffer("cos", angles.cos().float(), persistent=False)
        self.register_buffer("sin", angles.sin().float(), persistent=False)

    def forward(
        self, q: Tensor, k: Tensor | None = None, positions: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Rotate ``q`` and ``k``, (..., seq, heads, head dim), by the angles of their positions."""
        rotated: tuple[Tensor, Tensor | None] = opforge.rope(
            q, k, self.cos, self.sin, positions, self.interleaved
        )
        return rotated

    def extra_repr(self) -> str:
        """The arguments that repr() shows."""
        return (
            f"{self.dim}, max_positions={self.max_positions}, base={self.base:g}, "
            f"interleaved={self.interleaved}"
        )
