# SPDX-License-Identifier: Apache-2.0
"""The layer that ``kernelize`` swaps in; see docs/huggingface.md."""

from __future__ import annotations

from torch import Tensor, nn

from .op import reglu


class ReluAndMul(nn.Module):
    """In place of a layer that multiplies relu of one half with the other half."""

    has_backward = True
    can_torch_compile = True

    def forward(self, x: Tensor) -> Tensor:
        """The last dim of ``x`` holds the gate, then what it is multiplied with."""
        return reglu(x)
