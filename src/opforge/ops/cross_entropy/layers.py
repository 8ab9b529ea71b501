# SPDX-License-Identifier: Apache-2.0
"""The layer that ``kernelize`` swaps in; see docs/huggingface.md."""

from __future__ import annotations

from torch import Tensor, nn

from opforge.ops.families.losses import Reduction

from .op import cross_entropy


class CrossEntropyLoss(nn.Module):
    """In place of torch.nn.CrossEntropyLoss without class weights, for labels."""

    has_backward = True
    can_torch_compile = True
    weight: Tensor | None
    ignore_index: int
    reduction: Reduction
    label_smoothing: float

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss of the logits. As in torch, their classes are along dim 1 if there is one."""
        if self.weight is not None:
            raise ValueError("CrossEntropyLoss: class weights are not supported")
        return cross_entropy(
            input.movedim(1, -1) if input.dim() > 1 else input,
            target,
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
            reduction=self.reduction,
        )
