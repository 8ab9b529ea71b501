# SPDX-License-Identifier: Apache-2.0
"""The layer that ``kernelize`` swaps in; see docs/huggingface.md."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from .op import layer_norm


class LayerNorm(nn.Module):
    """In place of torch.nn.LayerNorm."""

    has_backward = True
    can_torch_compile = True
    normalized_shape: tuple[int, ...]
    weight: Tensor | None
    bias: Tensor | None
    eps: float

    def forward(self, input: Tensor) -> Any:
        """The norm over the last dims."""
        dims = len(self.normalized_shape)
        if dims == 1:
            return layer_norm(input, self.weight, self.bias, eps=self.eps)
        weight = None if self.weight is None else self.weight.reshape(-1)
        bias = None if self.bias is None else self.bias.reshape(-1)
        y: Any = layer_norm(input.flatten(-dims), weight, bias, eps=self.eps)
        return y.reshape(input.shape)
