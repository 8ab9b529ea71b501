# SPDX-License-Identifier: Apache-2.0
"""The cross entropy modules."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

import opforge
from opforge.ops.families.losses import refuse_probabilities


class CrossEntropyLoss(nn.Module):
    """:class:`torch.nn.CrossEntropyLoss` for labels, computed by :func:`opforge.cross_entropy`.

    By default, as in torch, the classes of logits with more than two dims are along dim 1.

    Args:
        weight: None; class weights are not supported.
        ignore_index: rows with this label do not count.
        reduction: "none", "mean" or "sum".
        label_smoothing: the share of a label's weight that is spread over all classes.
        z_loss: adds ``z_loss * logsumexp(row)²`` to the loss of each row.
        dim: the dim of the classes. With -1, logits of any shape are read without a copy.
        overwrite_logits: allows the backward to write the gradient over the logits.
    """

    def __init__(
        self,
        weight: Tensor | None = None,
        *,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
        dim: int = 1,
        overwrite_logits: bool = False,
    ) -> None:
        super().__init__()
        _refuse_weights(type(self).__name__, weight)
        self.dim = dim
        self.options: dict[str, Any] = {
            "ignore_index": ignore_index,
            "reduction": reduction,
            "label_smoothing": label_smoothing,
            "z_loss": z_loss,
            "overwrite_logits": overwrite_logits,
        }

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """The loss of the logits, with one label per row."""
        if logits.dim() > 1:
            refuse_probabilities("nn.CrossEntropyLoss", target, logits.shape, self.dim)
            logits = logits.movedim(self.dim, -1)
        return opforge.cross_entropy(logits, target, **self.options)

    def extra_repr(self) -> str:
        """The arguments that repr() shows."""
        return ", ".join(f"{k}={v!r}" for k, v in self.options.items()) + f", dim={self.dim}"


class LinearCrossEntropyLoss(nn.Module):
    """:func:`opforge.linear_cross_entropy` of hidden states and the weight of the last layer.

    Args:
        weight: None; class weights are not supported.
        ignore_index: rows with this label do not count.
        reduction: "none", "mean" or "sum".
        label_smoothing: the share of a label's weight that is spread over all classes.
        z_loss: adds ``z_loss * logsumexp(row)²`` to the loss of each row.
        chunk: the largest number of rows whose logits exist at a time; 0 chooses it.
        low_memory: sums the gradient of the weight in its own dtype, with fewer rows at a time.
    """

    def __init__(
        self,
        weight: Tensor | None = None,
        *,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
        chunk: int = 0,
        low_memory: bool = False,
    ) -> None:
        super().__init__()
        _refuse_weights(type(self).__name__, weight)
        self.options: dict[str, Any] = {
            "ignore_index": ignore_index,
            "reduction": reduction,
            "label_smoothing": label_smoothing,
            "z_loss": z_loss,
            "chunk": chunk,
            "low_memory": low_memory,
        }

    def forward(
        self, input: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = None
    ) -> Tensor:
        """The loss of ``linear(input, weight, bias)``, with one label per row of ``input``."""
        return opforge.linear_cross_entropy(input, weight, target, bias, **self.options)

    def extra_repr(self) -> str:
        """The arguments that repr() shows."""
        return ", ".join(f"{k}={v!r}" for k, v in self.options.items())


def _refuse_weights(name: str, weight: Tensor | None) -> None:
    if weight is not None:
        raise ValueError(
            f"opforge.nn.{name}: class weights are not supported; use torch.nn.CrossEntropyLoss, "
            'or reduction="none" and weigh the losses of the rows yourself'
        )
