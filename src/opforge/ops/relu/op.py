# SPDX-License-Identifier: Apache-2.0
"""relu: y = max(x, 0), keeping NaN and the strides of x."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import opforge
from opforge.op import Backward, Make, Op


def backward_reference(grad_y: Tensor, y: Tensor) -> Tensor:
    """The gradient passes where y is positive (or NaN)."""
    return grad_y.masked_fill(y <= 0, 0)


def cases(make: Make) -> Iterator[tuple[Any, ...]]:
    """Sizes around the vector width, empty, scalar, strided."""
    for shape in [(), (0,), (1,), (7,), (1023,), (64, 1025), (2, 3, 5, 7)]:
        yield (make(*shape),)
    yield (make(33, 65).t(),)
    yield (make(2, 8, 9, 10).to(memory_format=torch.channels_last),)
    yield (make(129)[1:],)
    yield (make(16, 32)[:, ::2],)


op = Op(
    schema="relu(Tensor x) -> Tensor y",
    reference=torch.relu,
    # y decides as well as x does, and the next layer keeps it alive anyway: nothing extra is saved.
    backward=Backward(
        "relu_backward(Tensor grad_y, Tensor y) -> Tensor grad_x", backward_reference
    ),
    cases=cases,
    operations=lambda x: x.numel(),
    sized=lambda make, *shape: (make(*shape),),
    like="x",
    pointwise=True,
    module=lambda: opforge.nn.ReLU(),
)


def relu(x: Tensor) -> Tensor:
    """Rectified linear unit, elementwise. The output has the strides of ``x``."""
    y: Tensor = op(x)
    return y
