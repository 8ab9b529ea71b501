# SPDX-License-Identifier: Apache-2.0
"""Modules of the gated activations. They take ``gate`` and ``up``, or one tensor with both."""

from __future__ import annotations

from torch import Tensor, nn

import opforge


class SwiGLU(nn.Module):
    """:func:`opforge.swiglu` as a module."""

    def forward(self, gate: Tensor, up: Tensor | None = None) -> Tensor:
        """Return ``silu(gate) * up``."""
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
        """Return ``gelu(gate) * up``."""
        y: Tensor = opforge.geglu(gate, up, self.approximate)
        return y

    def extra_repr(self) -> str:
        """The arguments that repr() shows."""
        return f"approximate={self.approximate!r}"


class ReGLU(nn.Module):
    """:func:`opforge.reglu` as a module."""

    def forward(self, gate: Tensor, up: Tensor | None = None) -> Tensor:
        """Return ``relu(gate) * up``."""
        y: Tensor = opforge.reglu(gate, up)
        return y
