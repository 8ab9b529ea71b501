# SPDX-License-Identifier: Apache-2.0
"""mlp with products of FP8 numbers: two or three calls of fp8_linear, and the gate between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torch import Tensor

import opforge
from opforge.ops.families import float8, products

GATES = {"silu": "swiglu", "gelu": "geglu", "relu": "reglu"}  # the ops that are one kernel


def gate(first: Tensor, second: Tensor | None, activation: str | None) -> Tensor:
    """``activation(first) * second``. Without ``second``, the last dim holds both."""
    if activation in GATES:
        run: Callable[..., Tensor] = getattr(opforge, GATES[activation])
        return run(first, second)
    if second is None:
        return products.gate(first, products.NAMES.index(activation))
    return products.ACTIVATIONS[activation](first) * second


def mlp(
    x: Tensor,
    up_weight: Tensor,
    down_weight: Tensor,
    up_bias: Tensor | None,
    down_bias: Tensor | None,
    gate_weight: Tensor | None,
    gate_bias: Tensor | None,
    residual: Tensor | None,
    activation: str | None,
    gated: bool,
    scaling: Literal["row", "tensor"],
) -> Tensor:
    """The block, whose arguments fit."""
    float8.by_row("mlp", scaling)

    def linear(
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        activation: str | None = None,
        residual: Tensor | None = None,
    ) -> Tensor:
        y: Tensor = opforge.fp8_linear(x, weight, bias, activation, residual, scaling=scaling)
        return y

    if gate_weight is not None:
        up = linear(x, up_weight, up_bias)
        h = gate(linear(x, gate_weight, gate_bias), up, activation)
    elif gated:
        h = gate(linear(x, up_weight, up_bias), None, activation)
    else:
        h = linear(x, up_weight, up_bias, activation)
    return linear(h, down_weight, down_bias, None, residual)
