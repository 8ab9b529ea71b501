# SPDX-License-Identifier: Apache-2.0
"""Modules around the gated activations: ``forward(gate, up)``, or one tensor that holds both."""

from __future__ import annotations

from torch import Tensor, nn

import opforge


class SwiGLU(nn.Module):
    """:func:`opforge.swiglu` as a module."""

    def forward(self, gate: Tensor, up: Tensor | None = None) -> Tensor:
        """``silu(gate) * up``."""
        y: Tensor = opforge.swiglu(gate, up)
        return y


class GEGLU(nn.Module):
    """:func:`opforge.geglu` as a module.

    Args:
        approximate: ``"none"`` or ``"tanh"``, as in :class:`torch.nn.GELU`.
    """

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        self.approximate = approximate

    def forward(self, gate: Tensor, up: Tensor | None = None) -> Tensor:
        """``gelu(gate) * up``."""
        y: Tensor = opforge.geglu(gate, up, self.approximate)
        return y

    def extra_repr(self) -> str:
        """What repr() shows of the arguments."""
        return f"approximate={self.approximate!r}"


class ReGLU(nn.Module):
    """:func:`opforge.reglu` as a module."""

    def forward(self, gate: Tensor, up: Tensor | None = None) -> Tensor:
        """``relu(gate) * up``."""
        y: Tensor = opforge.reglu(gate, up)
        return y
