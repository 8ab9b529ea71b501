# SPDX-License-Identifier: Apache-2.0
"""scale_bias_relu: y = relu(x * scale + bias), with the bias along the last dim."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import opforge
from opforge.op import Backward, Make, Op


def reference(x: Tensor, bias: Tensor, scale: float) -> Tensor:
    """The formula."""
    return torch.relu(x * scale + bias)


def backward_reference(grad_y: Tensor, y: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """The gradient passes where y is positive (or NaN): scaled for x, summed over rows for bias."""
    passed = grad_y.masked_fill(y <= 0, 0)
    rows = passed.reshape(math.prod(y.shape[:-1]), y.shape[-1])
    return passed * scale, rows.sum(0)


def validate(x: Tensor, bias: Tensor) -> None:
    """bias has one value per column of x, in the dtype of x."""
    if x.dim() == 0:
        raise ValueError(
            "opforge.scale_bias_relu: x must have at least one dimension, got a scalar"
        )
    if bias.dim() != 1 or bias.shape[0] != x.shape[-1]:
        raise ValueError(
            f"opforge.scale_bias_relu: bias must have shape ({x.shape[-1]},), one value per column "
            f"of x, which has shape {tuple(x.shape)}; got {tuple(bias.shape)}"
        )
    if x.dtype != bias.dtype:
        raise TypeError(
            f"opforge.scale_bias_relu: x is {x.dtype} but bias is {bias.dtype}; "
            "convert one, as in bias.to(x.dtype)"
        )


def cases(make: Make) -> Iterator[tuple[Any, ...]]:
    """Columns around the vector width, many rows, empty, strided."""
    for shape in [(5,), (0, 4), (3, 0), (1, 1), (7, 31), (64, 33), (2, 3, 1025), (300, 8)]:
        yield make(*shape), make(shape[-1]), 0.5
    yield make(40, 24).t(), make(40), -1.5
    yield make(33, 66)[:, 1:], make(130)[::2], 2.0
    yield make(16, 32)[::2], make(32), 1.0


op = Op(
    schema="scale_bias_relu(Tensor x, Tensor bias, float scale) -> Tensor y",
    reference=reference,
    # The backward only needs the sign of y, and the next layer keeps y alive anyway.
    backward=Backward(
        "scale_bias_relu_backward(Tensor grad_y, Tensor y, float scale) "
        "-> (Tensor grad_x, Tensor grad_bias)",
        backward_reference,
    ),
    validate=validate,
    cases=cases,
    operations=lambda x: 3 * x.numel(),
    sized=lambda make, *shape: (make(*shape), make(shape[-1]), 0.5),
    autocast="promote",
    module=lambda x, scale: opforge.nn.ScaleBiasReLU(x.shape[-1], scale),
)


def scale_bias_relu(x: Tensor, bias: Tensor, scale: float = 1.0) -> Tensor:
    """``relu(x * scale + bias)``, with ``bias`` along the last dim of ``x``."""
    y: Tensor = op(x, bias, scale)
    return y
