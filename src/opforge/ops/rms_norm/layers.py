# SPDX-License-Identifier: Apache-2.0
"""The layers that ``kernelize`` swaps in; see docs/huggingface.md."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from opforge.ops.families.norms import wide_dtype

from .op import rms_norm


class RMSNorm(nn.Module):
    """In place of torch.nn.RMSNorm."""

    has_backward = True
    can_torch_compile = True
    normalized_shape: tuple[int, ...]
    weight: Tensor | None
    eps: float | None

    def forward(self, x: Tensor) -> Any:
        """The norm over the last dims."""
        eps = torch.finfo(wide_dtype(x)).eps if self.eps is None else self.eps
        dims = len(self.normalized_shape)
        if dims == 1:
            return rms_norm(x, self.weight, eps=eps)
        weight = None if self.weight is None else self.weight.reshape(-1)
        return rms_norm(x.flatten(-dims), weight, eps=eps).reshape(x.shape)  # type: ignore[union-attr]


class LlamaRMSNorm(nn.Module):
    """In place of the norms of transformers that are written like LlamaRMSNorm."""

    has_backward = True
    can_torch_compile = True
    weight: Tensor
    variance_epsilon: float

    def forward(self, hidden_states: Tensor) -> Any:
        """The norm over the last dim."""
        return rms_norm(hidden_states, self.weight, eps=self.variance_epsilon)


class GemmaRMSNorm(nn.Module):
    """In place of the norms of transformers whose weight is stored without its 1."""

    has_backward = True
    can_torch_compile = True
    weight: Tensor
    eps: float

    def forward(self, x: Tensor) -> Any:
        """The norm over the last dim."""
        return rms_norm(x, self.weight, eps=self.eps, offset=1.0)
