# SPDX-License-Identifier: Apache-2.0
"""The dropout module."""

from __future__ import annotations

from torch import Tensor, nn

import opforge
from opforge.ops.families import philox


class Dropout(nn.Module):
    """:func:`opforge.dropout` as a module. It drops elements only in training mode.

    Args:
        p: the probability that an element becomes 0, rounded to a multiple of 2^-16.
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        philox.check_probability("nn.Dropout", p)
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """Drop elements of ``x`` in training mode. Otherwise return ``x`` itself."""
        y: Tensor = opforge.dropout(x, self.p, self.training)
        return y

    def extra_repr(self) -> str:
        """The arguments that repr() shows."""
        return f"p={self.p:g}"
