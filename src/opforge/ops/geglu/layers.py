# SPDX-License-Identifier: Apache-2.0
"""The layers that ``kernelize`` swaps in; see docs/huggingface.md."""

from __future__ import annotations

from torch import Tensor, nn

from .op import geglu


class GeluAndMul(nn.Module):
    """In place of a layer that multiplies gelu of one half with the other half."""

    has_backward = True
    can_torch_compile = True

    def forward(self, x: Tensor) -> Tensor:
        """The last dim of ``x`` holds the gate, then what it is multiplied with."""
        return geglu(x)


class GeluTanhAndMul(nn.Module):
    """The same with the approximation by tanh."""

    has_backward = True
    can_torch_compile = True

    def forward(self, x: Tensor) -> Tensor:
        """The last dim of ``x`` holds the gate, then what it is multiplied with."""
        return geglu(x, approximate="tanh")
