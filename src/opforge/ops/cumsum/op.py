# SPDX-License-Identifier: Apache-2.0
"""cumsum: running sums along a dim, forward or reverse, inclusive or exclusive."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from opforge.op import Make, Op


def reference(x: Tensor, dim: int, exclusive: bool, reverse: bool) -> Tensor:
    """torch.cumsum of the flipped or shifted input."""
    if x.dim() == 0:
        return reference(x.reshape(1), 0, exclusive, reverse).reshape(())
    if reverse:
        x = x.flip(dim)
    if exclusive and x.shape[dim]:
        shift = [0, 0] * (x.dim() - 1 - dim % x.dim()) + [1, -1]
        x = torch.nn.functional.pad(x, shift)
    y = torch.cumsum(x, dim)
    return y.flip(dim) if reverse else y


def backward(grad_y: Tensor, dim: int, exclusive: bool, reverse: bool) -> Tensor:
    """The same op in the other direction, because an element is in all sums from its own on."""
    grad_x: Tensor = op(grad_y, dim, exclusive, not reverse)
    return grad_x


def validate(x: Tensor, dim: int) -> None:
    """The dim is in range."""
    rank = max(x.dim(), 1)
    if not -rank <= dim < rank:
        raise ValueError(
            f"opforge.cumsum: dim {dim} is out of range for x of shape {tuple(x.shape)}; "
            f"it must be from {-rank} to {rank - 1}"
        )


def cases(make: Make) -> Iterator[tuple[Any, ...]]:
    """Rows and columns, short and long, all four kinds of sums, empty, strided."""
    yield make(), 0, False, False
    for n, exclusive in enumerate((False, True)):
        for m, reverse in enumerate((False, True)):
            yield make(9 + 60 * n, 33 + 97 * m), -1, exclusive, reverse
            yield make(130 - 60 * n, 24 + 9 * m), 0, exclusive, reverse
    yield make(0, 5), 0, False, False
    yield make(5, 0), 0, True, False
    yield make(3, 5, 7, 9), 1, False, True
    yield make(2, 70, 16), -2, False, False
    yield make(40, 24).t(), 0, False, False
    yield make(33, 67)[:, 1:], -1, True, True
    yield make(16, 32)[::2], 0, False, False
    yield make(4, 5000), 1, False, True
    yield make(2, 20011), -1, False, False
    yield make(3001, 3), 0, True, False


op = Op(
    schema="cumsum(Tensor x, int dim, bool exclusive, bool reverse) -> Tensor y",
    reference=reference,
    backward=backward,
    validate=validate,
    cases=cases,
    operations=lambda x: x.numel(),
    sized=lambda make, *shape: {
        "last dim": (make(*shape), -1, False, False),
        "first dim": (make(*shape), 0, False, False),
    },
    rowwise=True,
    autocast=torch.float32,
)


def cumsum(x: Tensor, dim: int = -1, exclusive: bool = False, reverse: bool = False) -> Tensor:
    """Running sums of ``x`` along ``dim``, with the same bits every time.

    ``exclusive`` leaves out the element itself. ``reverse`` sums from the end.
    """
    y: Tensor = op(x, dim, exclusive, reverse)
    return y
