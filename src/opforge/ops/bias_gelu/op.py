# SPDX-License-Identifier: Apache-2.0
"""bias_gelu: y = gelu(x + bias), with the bias along the last dim."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import opforge
from opforge.op import Backward, Build, Make, Op

APPROXIMATE = {"none": False, "tanh": True}


def reference(x: Tensor, bias: Tensor, tanh: bool) -> Tensor:
    """The formula."""
    return functional.gelu(x + bias, approximate="tanh" if tanh else "none")


def backward_reference(
    grad_y: Tensor, x: Tensor, bias: Tensor, tanh: bool
) -> tuple[Tensor, Tensor]:
    """The gradient of x, and that of bias, which is its sum over the rows."""
    how = "tanh" if tanh else "none"
    passed: Tensor = torch.ops.aten.gelu_backward(grad_y, x + bias, approximate=how)
    rows = passed.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    return passed, rows.sum(0)


def validate(x: Tensor, bias: Tensor) -> None:
    """bias has one value per column of x, in the dtype of x."""
    if x.dim() == 0:
        raise ValueError("opforge.bias_gelu: x must have at least one dimension, got a scalar")
    if bias.dim() != 1 or bias.shape[0] != x.shape[-1]:
        raise ValueError(
            f"opforge.bias_gelu: bias must have shape ({x.shape[-1]},), one value per column "
            f"of x, which has shape {tuple(x.shape)}; got {tuple(bias.shape)}"
        )
    if x.dtype != bias.dtype:
        raise TypeError(
            f"opforge.bias_gelu: x is {x.dtype} but bias is {bias.dtype}; "
            "convert one, as in bias.to(x.dtype)"
        )


def cases(make: Make) -> Iterator[tuple[Any, ...]]:
    """Columns around the vector width, many rows, empty, strided; with and without tanh."""
    for i, shape in enumerate(
        [(5,), (0, 4), (3, 0), (1, 9), (7, 31), (64, 33), (2, 3, 1025), (300, 8)]
    ):
        yield make(*shape), make(shape[-1]), i % 2 == 0
    yield make(40, 24).t(), make(40), False
    yield make(33, 66)[:, 1:], make(130)[::2], True
    yield make(16, 32)[::2], make(32), False


op = Op(
    schema="bias_gelu(Tensor x, Tensor bias, bool tanh) -> Tensor y",
    reference=reference,
    backward=Backward(
        "bias_gelu_backward(Tensor grad_y, Tensor x, Tensor bias, bool tanh) "
        "-> (Tensor grad_x, Tensor grad_bias)",
        backward_reference,
    ),
    validate=validate,
    cases=cases,
    # Plus bias, three for the cubic, tanh, plus 1, times x / 2.
    operations=lambda x: 8 * x.numel(),
    sized=lambda make, *shape: {
        "tanh": (make(*shape), make(shape[-1]), True),
        "erf": (make(*shape), make(shape[-1]), False),
    },
    autocast="promote",
    module=lambda x, tanh: opforge.nn.BiasGELU(x.shape[-1], "tanh" if tanh else "none"),
    build=Build(by_dtype=["cuda"]),
)


def bias_gelu(x: Tensor, bias: Tensor, approximate: str = "none") -> Tensor:
    """``gelu(x + bias)``, with ``bias`` along the last dim of ``x``.

    ``approximate`` is ``"none"`` or ``"tanh"``, as in :func:`torch.nn.functional.gelu`.
    """
    if approximate not in APPROXIMATE:
        raise ValueError(
            f'opforge.bias_gelu: approximate must be "none" or "tanh", got {approximate!r}'
        )
    y: Tensor = op(x, bias, APPROXIMATE[approximate])
    return y
