# SPDX-License-Identifier: Apache-2.0
"""vector_add: c = a + b with broadcasting."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import opforge
from opforge.op import Make, Op


def backward(
    grad_c: Tensor, a_shape: list[int], b_shape: list[int], needs_a: bool, needs_b: bool
) -> tuple[Tensor | None, Tensor | None]:
    """The gradient, summed over broadcast dims. Without broadcasting, no bytes move."""
    return (
        sum_to(grad_c, a_shape) if needs_a else None,
        sum_to(grad_c, b_shape) if needs_b else None,
    )


def sum_to(grad: Tensor, shape: list[int]) -> Tensor:
    """Sum ``grad`` over the dims that broadcasting added or expanded."""
    added = grad.dim() - len(shape)
    stretched = [added + i for i, n in enumerate(shape) if n == 1 and grad.shape[added + i] != 1]
    dims = [*range(added), *stretched]
    return opforge.reduce_sum(grad, dims, keepdim=True).reshape(shape) if dims else grad


def validate(a: Tensor, b: Tensor) -> None:
    """a and b have one dtype, and their shapes broadcast."""
    if a.dtype != b.dtype:
        raise TypeError(
            f"opforge.vector_add: a is {a.dtype} but b is {b.dtype}; "
            "convert one, as in b.to(a.dtype)"
        )
    for m, n in zip(reversed(a.shape), reversed(b.shape), strict=False):
        if m != n and m != 1 and n != 1:
            raise ValueError(
                f"opforge.vector_add: a has shape {tuple(a.shape)} and b has {tuple(b.shape)}, "
                "which do not broadcast"
            )


def cases(make: Make) -> Iterator[tuple[Any, ...]]:
    """Equal shapes, all kinds of broadcasting, empty, strided."""
    for a, b in [
        ((), ()),
        ((0,), (1,)),
        ((1025,), (1025,)),
        ((31, 33), (33,)),
        ((31, 33), (31, 1)),
        ((4, 1, 7), (5, 1)),
        ((64, 128), (64, 128)),
        ((3, 64, 40), (64, 40)),
    ]:
        yield make(*a), make(*b)
    yield make(40, 24).t(), make(24, 40)
    yield make(65)[1:], make(65)[:-1]


op = Op(
    schema="vector_add(Tensor a, Tensor b) -> Tensor c",
    reference=torch.add,
    backward=backward,
    validate=validate,
    cases=cases,
    operations=lambda a, b: torch.broadcast_shapes(a.shape, b.shape).numel(),
    sized=lambda make, *shape: {
        "equal shapes": (make(*shape), make(*shape)),
        "a row added": (make(*shape), make(shape[-1])),
    },
    pointwise=True,
    autocast="promote",
)


def vector_add(a: Tensor, b: Tensor) -> Tensor:
    """``a + b`` with broadcasting, for tensors of one dtype (autocast promotes to the wider)."""
    c: Tensor = op(a, b)
    return c
