# SPDX-License-Identifier: Apache-2.0
"""The layer that ``kernelize`` swaps in; see docs/huggingface.md."""

from __future__ import annotations

from torch import Tensor, nn

from .op import dropout


class Dropout(nn.Module):
    """In place of torch.nn.Dropout. With its ``inplace``, the input still stays as it is."""

    has_backward = True
    can_torch_compile = True
    p: float

    def forward(self, input: Tensor) -> Tensor:
        """Drop elements in training mode."""
        return dropout(input, self.p, self.training)
