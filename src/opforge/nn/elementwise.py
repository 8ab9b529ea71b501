# SPDX-License-Identifier: Apache-2.0
"""Modules around the elementwise ops."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import opforge


class ReLU(nn.Module):
    """:func:`opforge.relu` as a module."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply relu to ``x``."""
        y: Tensor = opforge.relu(x)
        return y


class ScaleBiasReLU(nn.Module):
    """``relu(x * scale + bias)`` with a learned bias over the last dim.

    Args:
        features: size of the last dim.
        scale: a fixed factor.
    """

    def __init__(
        self,
        features: int,
        scale: float = 1.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if features < 1:
            raise ValueError(f"features must be at least 1, got {features}")
        self.features = features
        self.scale = float(scale)
        self.bias = nn.Parameter(torch.zeros(features, device=device, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        """Apply the op to ``x``, whose last dim has ``features`` elements."""
        y: Tensor = opforge.scale_bias_relu(x, self.bias, self.scale)
        return y

    def reset_parameters(self) -> None:
        """Set the bias to zero, as at construction."""
        nn.init.zeros_(self.bias)

    def extra_repr(self) -> str:
        """The arguments that repr() shows."""
        return f"{self.features}, scale={self.scale:g}"


class BiasGELU(nn.Module):
    """``gelu(x + bias)`` with a learned bias over the last dim.

    Args:
        features: size of the last dim.
        approximate: ``"none"`` or ``"tanh"``, as in :class:`torch.nn.GELU`.
    """

    def __init__(
        self,
        features: int,
        approximate: str = "none",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if features < 1:
            raise ValueError(f"features must be at least 1, got {features}")
        self.features = features
        self.approximate = approximate
        self.bias = nn.Parameter(torch.zeros(features, device=device, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        """Apply the op to ``x``, whose last dim has ``features`` elements."""
        y: Tensor = opforge.bias_gelu(x, self.bias, self.approximate)
        return y

    def reset_parameters(self) -> None:
        """Set the bias to zero, as at construction."""
        nn.init.zeros_(self.bias)

    def extra_repr(self) -> str:
        """The arguments that repr() shows."""
        return f"{self.features}, approximate={self.approximate!r}"
