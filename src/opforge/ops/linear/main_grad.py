# SPDX-License-Identifier: Apache-2.0
"""linear whose backward adds the gradient of the weight to a float32 tensor, the ``main_grad``.

The weight gets no gradient of its own, so that none is rounded to 16 bits, stored and read again.
One product reads the total and writes it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from opforge.ops.families import product_gradients, products
from opforge.ops.families.product_gradients import below


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        main_grad: Tensor,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        residual: Tensor | None,
        options: tuple[int, float, float | None, float | None, bool],
        by_y: bool,
    ) -> Tensor:
        save = any(ctx.needs_input_grad[1:4])
        y: Tensor
        y, z = below("linear")(x, weight, bias, residual, *options, save)
        ctx.save_for_backward(x, weight, y if by_y else z)
        ctx.main_grad, ctx.options = main_grad, options  # not saved: backwards change it
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_y: Tensor) -> tuple[Any, ...]:
        x, weight, at = ctx.saved_tensors
        *finish, tf32 = ctx.options
        needs_x, needs_weight, needs_bias, needs_residual = ctx.needs_input_grad[1:5]
        if not (needs_x or needs_weight or needs_bias):  # nothing was kept
            return None, None, None, None, grad_y, None, None
        passed = _before(grad_y, at, *finish)
        grad_x = grad_bias = None
        if needs_x:
            grad_x, _ = product_gradients.of_linear(passed, x, weight, tf32, True, False)
        if needs_weight:
            product_gradients.add_of_weight(ctx.main_grad, passed, x, tf32)
        if needs_bias:
            grad_bias = below("reduce_sum")(products.rows_of(passed), [0], False)
        return None, grad_x, None, grad_bias, grad_y if needs_residual else None, None, None


def _before(
    grad_y: Tensor, at: Tensor, activation: int, scale: float, low: float | None, high: float | None
) -> Tensor:
    """The gradient of the product. ``at`` is the product, or y in its place."""
    if scale != 1.0 or low is not None or high is not None:
        return products.finish_backward(grad_y, at, activation, scale, low, high)
    if activation == products.NONE:
        return grad_y
    passed: Tensor
    passed, _, _ = below("linear_dact")(grad_y, None, at, activation, False, False, False, False)
    return passed


def _apply(*args: Any) -> Tensor:
    y: Tensor = _Linear.apply(*args)
    return y


# Compilers cannot see that a backward changes a tensor, so they leave this call out.
_apply_eagerly: Callable[..., Tensor] = torch.compiler.disable(_apply)


def linear(
    main_grad: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    options: tuple[int, float, float | None, float | None, bool],
    by_y: bool,
) -> Tensor:
    """As the op, but the gradient of ``weight`` is added to ``main_grad``.

    With ``by_y``, the result tells all that the backward needs of the product.
    """
    return _apply_eagerly(main_grad, x, weight, bias, residual, options, by_y)
