# SPDX-License-Identifier: Apache-2.0
"""The layer that ``kernelize`` swaps in; see docs/huggingface.md."""

from __future__ import annotations

from torch import Tensor, nn

from .op import group_norm


class GroupNorm(nn.Module):
    """In place of torch.nn.GroupNorm."""

    has_backward = True
    can_torch_compile = True
    num_groups: int
    weight: Tensor | None
    bias: Tensor | None
    eps: float

    def forward(self, input: Tensor) -> Tensor:
        """The norm over each group of channels."""
        return group_norm(input, self.num_groups, self.weight, self.bias, eps=self.eps)
