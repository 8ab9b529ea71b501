# SPDX-License-Identifier: Apache-2.0
"""reduce_sum: the sum over one dim, several or all, accumulated in float32 or float64."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from opforge.op import Build, Make, Op


def reference(x: Tensor, dim: list[int] | None, keepdim: bool) -> Tensor:
    """torch.sum, where no dims mean all of them."""
    return torch.sum(x, dim if dim else tuple(range(x.dim())), keepdim)


def backward(grad_y: Tensor, x_shape: list[int], dim: list[int] | None, keepdim: bool) -> Tensor:
    """Each element gets the gradient of its sum: a view with stride 0, which moves no bytes."""
    if not keepdim and x_shape:
        for d in sorted(d % len(x_shape) for d in dim) if dim else range(len(x_shape)):
            grad_y = grad_y.unsqueeze(d)
    return grad_y.expand(x_shape)


def validate(x: Tensor, dim: list[int] | None) -> None:
    """Each dim is in range and given once."""
    rank = max(x.dim(), 1)
    for d in dim or ():
        if not -rank <= d < rank:
            raise ValueError(
                f"opforge.reduce_sum: dim {d} is out of range for x of shape {tuple(x.shape)}; "
                f"it must be from {-rank} to {rank - 1}"
            )
    if dim and len({d % rank for d in dim}) != len(dim):
        raise ValueError(f"opforge.reduce_sum: dim {tuple(dim)} names a dimension twice")


def cases(make: Make) -> Iterator[tuple[Any, ...]]:
    """Sums over rows, columns, all dims and several dims; empty, strided."""
    yield make(), None, False
    yield make(1025), None, False
    for dim in ([0], [1], [0, 1], None):
        for keepdim in (False, True):
            yield make(65, 130), dim, keepdim
    yield make(0, 5), [0], False
    yield make(5, 0), [0], False
    yield make(3, 5, 7, 9), [0, 2], False
    yield make(3, 5, 7, 9), [-1, 1], True
    yield make(40, 24).t(), [0], False
    yield make(33, 67)[:, 1:], [-1], False
    yield make(300, 7), [0], False
    yield make(4, 5000), [1], False


op = Op(
    schema="reduce_sum(Tensor x, int[]? dim, bool keepdim) -> Tensor y",
    reference=reference,
    backward=backward,
    validate=validate,
    cases=cases,
    operations=lambda x: x.numel(),
    sized=lambda make, *shape: {
        "last dim": (make(*shape), [-1], False),
        "first dim": (make(*shape), [0], False),
        "all": (make(*shape), None, False),
    },
    autocast=torch.float32,
    build=Build(by_dtype=["cuda"]),
)


def reduce_sum(x: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
    """Sum of ``x`` over ``dim`` (an int, several, or None for all), the same bits every time."""
    if dim is not None:
        dim = [dim] if isinstance(dim, int) else [int(d) for d in dim]
    y: Tensor = op(x, dim, keepdim)
    return y
