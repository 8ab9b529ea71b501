# SPDX-License-Identifier: Apache-2.0
"""The linear layers of a mixture of experts as a module."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

import opforge


class GroupedLinear(nn.Module):
    """:func:`opforge.grouped_linear` with learned weights: a linear layer for each group of rows.

    Args:
        in_features: columns of the input.
        out_features: columns of the result.
        groups: the number of layers, such as experts.
        bias: whether each layer has a bias.
        tf32: multiply float32 as TF32.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        groups: int,
        bias: bool = True,
        *,
        tf32: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features, self.groups = in_features, out_features, groups
        self.tf32 = tf32
        shape = groups, out_features, in_features
        self.weights = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        biases = torch.empty(shape[:2], device=device, dtype=dtype) if bias else None
        self.biases = None if biases is None else nn.Parameter(biases)
        self.reset_parameters()

    def forward(self, x: Tensor, offsets: Tensor) -> Tensor:
        """The result for rows sorted by group, which end at ``offsets``."""
        y: Tensor = opforge.grouped_linear(x, self.weights, offsets, self.biases, tf32=self.tf32)
        return y

    def reset_parameters(self) -> None:
        """Draw new parameters, each layer's like those of :class:`torch.nn.Linear`."""
        bound = 1 / math.sqrt(max(self.in_features, 1))
        nn.init.uniform_(self.weights, -bound, bound)
        if self.biases is not None:
            nn.init.uniform_(self.biases, -bound, bound)

    def extra_repr(self) -> str:
        """The arguments that repr() shows."""
        return (
            f"{self.in_features}, {self.out_features}, groups={self.groups}, "
            f"bias={self.biases is not None}"
        )
