# SPDX-License-Identifier: Apache-2.0
"""Modules that drop elements while training."""

from __future__ import annotations

from torch import Tensor, nn

import opforge
from opforge.ops.families import philox


class Dropout(nn.Module):
    """:func:`opforge.dropout` as a module: in training mode only.

    Args:
        p: the probability of an element to become 0, in effect a multiple of 2^-16.
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        philox.check_probability("nn.Dropout", p)
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """Drop elements of ``x`` in training mode, else return it as it is."""
        y: Tensor = opforge.dropout(x, self.p, self.training)
        return y

    def extra_repr(self) -> str:
        """What repr() shows of the arguments."""
        return f"p={self.p:g}"
