# SPDX-License-Identifier: Apache-2.0
"""mlp whose backward adds the gradients of weights to float32 tensors: see linear/main_grad.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from opforge.ops.families import product_gradients

# For the gradients of up_weight, down_weight and gate_weight.
Totals: TypeAlias = "tuple[Tensor | None, Tensor | None, Tensor | None]"


def totals_of(main_grad: Mapping[str, Tensor], weights: Mapping[str, Tensor | None]) -> Totals:
    """The tensors in the order of the weights. Raises unless each fits its weight."""
    for name, total in main_grad.items():
        weight = weights.get(name)
        if weight is None:
            known = ", ".join(n for n, w in weights.items() if w is not None)
            raise ValueError(f"opforge.mlp: main_grad has {name!r}; the weights are {known}")
        product_gradients.check_total("mlp", f"main_grad[{name!r}]", total, weight)
    up, down, gate = (main_grad.get(name) for name in weights)
    return up, down, gate


class _MLP(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        forward: Callable[..., Any],
        backward: Callable[..., Any],
        totals: Totals,
        activation: int,
        tf32: bool,
        *tensors: Tensor | None,
    ) -> Tensor:
        y: Tensor
        y, z = forward(*tensors, activation, tf32, any(ctx.needs_input_grad))
        x, up_weight, down_weight, up_bias, _, gate_weight, gate_bias, _ = tensors
        ctx.save_for_backward(x, up_weight, down_weight, up_bias, gate_weight, gate_bias, z)
        ctx.backward_of, ctx.totals, ctx.options = backward, totals, (activation, tf32)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_y: Tensor) -> tuple[Any, ...]:
        *needs, needs_residual = ctx.needs_input_grad[5:]
        saved = ctx.saved_tensors
        found = ctx.backward_of(grad_y, *saved, *ctx.options, *needs, totals=ctx.totals)
        up, down, gate = (total is None for total in ctx.totals)
        own = [True, up, down, True, True, gate, True]  # that autograd gets
        grads = [
            grad if need and mine else None
            for grad, need, mine in zip(found, needs, own, strict=True)
        ]
        return None, None, None, None, None, *grads, grad_y if needs_residual else None


def _apply(*args: Any) -> Tensor:
    y: Tensor = _MLP.apply(*args)
    return y


_apply_eagerly: Callable[..., Tensor] = torch.compiler.disable(_apply)


def mlp(
    forward: Callable[..., Any],
    backward: Callable[..., Any],
    totals: Totals,
    tensors: tuple[Tensor | None, ...],
    activation: int,
    tf32: bool,
) -> Tensor:
    """As the op, which is these two functions. ``totals`` get the gradients of their weights."""
    return _apply_eagerly(forward, backward, totals, activation, tf32, *tensors)
