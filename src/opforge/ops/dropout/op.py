# SPDX-License-Identifier: Apache-2.0
"""dropout: y = x / (1 - p) where kept, 0 where dropped. The mask is computed from a seed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from opforge.op import Backward, Make, Op
from opforge.ops.families import philox


def reference(x: Tensor, seed: Tensor, p: float) -> Tensor:
    """Dropped elements are 0 for any x. torch's own dropout gives NaN for an infinity."""
    return torch.where(philox.kept(seed, x.shape, p), x * philox.scale(p), 0)


def backward_reference(grad_y: Tensor, seed: Tensor, p: float) -> Tensor:
    """Drop the same elements of the gradient, with the mask computed again."""
    return reference(grad_y, seed, p)


def validate(x: Tensor, seed: Tensor, p: float) -> None:
    """p is a probability, and seed has one element."""
    philox.check_probability("dropout", p)
    philox.check_seed("dropout", seed, x)


def cases(make: Make) -> Iterator[tuple[Any, ...]]:
    """Sizes around the vector width, empty, scalar, strided; all special values of p."""

    def seed(value: int) -> Tensor:
        return torch.tensor([value], device=make.device)

    for shape in [(), (0,), (1,), (7,), (1023,), (64, 1025), (2, 3, 5, 7)]:
        yield make(*shape), seed(17), 0.5
    yield make(33, 65).t(), seed(-(2**63)), 0.1
    yield make(129)[1:], seed(2**40 + 3), 0.9
    yield make(16, 32)[:, ::2], seed(5), 0.25
    yield make(64), seed(1), 0.0
    yield make(64), seed(1), 1.0


op = Op(
    schema="dropout(Tensor x, Tensor seed, float p) -> Tensor y",
    reference=reference,
    backward=Backward(
        "dropout_backward(Tensor grad_y, Tensor seed, float p) -> Tensor grad_x",
        backward_reference,
    ),
    own_dtypes={"seed": (torch.int64,)},
    validate=validate,
    cases=cases,
    # A factor and a choice. Random numbers do not count as work.
    operations=lambda x: 2 * x.numel(),
    sized=lambda make, *shape: (make(*shape), torch.tensor([17], device=make.device), 0.5),
)


def dropout(x: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """Set elements to 0 with probability ``p`` and divide the others by ``1 - p``.

    There are 16 random bits per element, so ``p`` is rounded to a multiple of 1/65536. The divisor
    uses the rounded ``p`` as well, which preserves the mean. Only ``p`` = 1 drops everything: any
    smaller ``p`` is rounded to at most 65535/65536.

    As in torch, ``x`` itself is returned if nothing is dropped: without ``training``, or with
    ``p`` = 0. The seed is drawn from torch's generator for the device of ``x``. torch.manual_seed,
    activation checkpointing and CUDA graphs therefore work as for torch's dropout. The same seed
    gives the same mask on every device, in every dtype and layout.
    """
    philox.check_probability("dropout", p)
    if not training or p == 0:
        return x
    y: Tensor = op(x, philox.draw_seed(x.device), p)
    return y
