# SPDX-License-Identifier: Apache-2.0
"""What cross_entropy and linear_cross_entropy share: options, and a look at the labels."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from opforge import settings

Reduction = Literal["none", "mean", "sum"]
REDUCTIONS: tuple[Reduction, ...] = ("none", "mean", "sum")
NONE, MEAN, SUM = range(3)  # in the schema


def validate_options(name: str, label_smoothing: float, z_loss: float, reduction: int) -> None:
    """Raise for numbers that make no loss; shared with linear_cross_entropy."""
    if not 0 <= label_smoothing <= 1:
        raise ValueError(
            f"opforge.{name}: label_smoothing must be from 0 to 1, got {label_smoothing}"
        )
    if not 0 <= z_loss < math.inf:
        raise ValueError(f"opforge.{name}: z_loss must be finite and not negative, got {z_loss}")
    if reduction not in range(3):
        raise ValueError(
            f"opforge.{name}: reduction must be 0 (none), 1 (mean) or 2 (sum), got {reduction}"
        )


def code_of(name: str, reduction: str) -> int:
    """The schema's number for a reduction."""
    if reduction not in REDUCTIONS:
        raise ValueError(
            f'opforge.{name}: reduction must be "none", "mean" or "sum", got {reduction!r}'
        )
    return REDUCTIONS.index(reduction)


def check_labels(name: str, target: Tensor, classes: int, ignore_index: int) -> None:
    """Raise IndexError for a label out of range, where it can be seen without waiting."""
    if not _can_look_at(target):
        return
    low, high = map(int, target.aminmax())
    if low >= 0 and high < classes:
        return
    wrong = ((target < 0) | (target >= classes)) & (target != ignore_index)
    if wrong.any():
        place = tuple(wrong.nonzero()[0].tolist())
        raise IndexError(
            f"opforge.{name}: target holds {int(target[place])} at {place}, which is neither a "
            f"class, 0 to {classes - 1}, nor ignore_index, {ignore_index}"
        )


def _can_look_at(target: Tensor) -> bool:
    return (
        not torch.compiler.is_compiling()
        and type(target) is Tensor
        and (target.device.type == "cpu" or settings.check_labels())
        and target.numel() > 0
        and target.dtype == torch.int64
        and not torch._C._are_functorch_transforms_active()
    )
