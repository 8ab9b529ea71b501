# SPDX-License-Identifier: Apache-2.0
"""The layer that ``kernelize`` swaps in; see docs/huggingface.md."""

from __future__ import annotations

from torch import Tensor, nn

from .op import log_softmax


class LogSoftmax(nn.Module):
    """In place of torch.nn.LogSoftmax with a ``dim``. Dims other than the last need copies."""

    has_backward = True
    can_torch_compile = True
    dim: int

    def forward(self, input: Tensor) -> Tensor:
        """Apply log_softmax over a dim."""
        if self.dim % input.dim() == input.dim() - 1:
            return log_softmax(input)
        return log_softmax(input.movedim(self.dim, -1)).movedim(-1, self.dim)
