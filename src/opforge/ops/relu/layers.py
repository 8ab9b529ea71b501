# SPDX-License-Identifier: Apache-2.0
"""The layer that ``kernelize`` swaps in; see docs/huggingface.md."""

from __future__ import annotations

from torch import Tensor, nn

from .op import relu


class ReLU(nn.Module):
    """In place of torch.nn.ReLU. With its ``inplace``, the input still stays as it is."""

    has_backward = True
    can_torch_compile = True

    def forward(self, input: Tensor) -> Tensor:
        """Apply relu."""
        return relu(input)
