# SPDX-License-Identifier: Apache-2.0
"""Backwards that are made of the ops linear and linear_dact, below autograd."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from opforge import discover
from opforge.ops.families import products
from opforge.ops.families.norms import no_tensor


@functools.cache  # finding an op reads its sources
def below(name: str) -> Callable[..., Any]:
    """A built-in op below autograd, with all returns of its schema."""
    op = discover.find(name)
    run: Callable[..., Any] = getattr(getattr(torch.ops, op.namespace), name).below_autograd
    return run


def of_linear(
    passed: Tensor,
    x: Tensor,
    weight: Tensor,
    tf32: bool,
    needs_x: bool,
    needs_weight: bool,
    added: Tensor | None = None,
    total: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The gradients of x (plus ``added``) and weight, given that of ``x weightᵀ``.

    That of weight is added to ``total`` instead, if there is one.
    """
    linear = below("linear")
    plain = products.NONE, 1.0, None, None, tf32, False
    grad_x, grad_weight = no_tensor(passed), no_tensor(passed)
    if needs_x:
        grad_x, _ = linear(passed, weight.t(), None, added, *plain)
    if needs_weight and total is not None:
        add_of_weight(total, passed, x, tf32)
    elif needs_weight:
        rows, inner = products.rows_of(passed), products.rows_of(x)
        grad_weight, _ = linear(rows.t(), inner.t(), None, None, *plain)
    return grad_x, grad_weight


def add_of_weight(total: Tensor, passed: Tensor, x: Tensor, tf32: bool) -> None:
    """Add the gradient of weight to ``total``, in its dtype, given that of ``x weightᵀ``."""
    if tf32:
        _, grad_weight = of_linear(passed, x, total, True, False, True)
        total += grad_weight
    else:
        products.add_product(total, products.rows_of(passed), products.rows_of(x))


def check_total(op: str, name: str, total: Tensor, weight: Tensor) -> None:
    """Raise unless ``total``, called ``name``, can hold the gradients of ``weight``."""
    wide = torch.float64 if weight.dtype == torch.float64 else torch.float32
    if total.shape != weight.shape or total.dtype != wide:
        raise ValueError(
            f"opforge.{op}: {name} must be {wide} of the weight's shape "
            f"{tuple(weight.shape)}, got {total.dtype} of shape {tuple(total.shape)}"
        )
    if total.device != weight.device:
        raise ValueError(
            f"opforge.{op}: {name} is on {total.device}, but the weight on {weight.device}"
        )
    if total.requires_grad:
        raise ValueError(f"opforge.{op}: {name} must not require a gradient itself")


def of_gated(
    passed: Tensor,
    sums: Tensor,
    x: Tensor,
    gate_weight: Tensor,
    up_weight: Tensor | None,
    tf32: bool,
    needs_x: bool,
    needs_weights: tuple[bool, bool],
    needs_biases: tuple[bool, bool],
    totals: tuple[Tensor | None, Tensor | None] = (None, None),
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of x, of the weights and of the biases of gate and up.

    ``passed`` is that of both products, beside each other, and ``sums`` those of its columns.
    Packed weights have one product each way. Of separate ones, the second adds to the first.
    ``totals`` are as in of_linear().
    """
    nothing = no_tensor(passed)
    if up_weight is None:
        grad_x, grad_weight = of_linear(
            *(passed, x, gate_weight, tf32, needs_x, needs_weights[0]), total=totals[0]
        )
        return grad_x, grad_weight, nothing, sums if needs_biases[0] else nothing, nothing
    gate, up = passed.chunk(2, -1)
    partial, grad_gate = of_linear(
        *(gate, x, gate_weight, tf32, needs_x, needs_weights[0]), total=totals[0]
    )
    added = partial if needs_x else None
    grad_x, grad_up = of_linear(
        *(up, x, up_weight, tf32, needs_x, needs_weights[1], added), total=totals[1]
    )
    gate_sums, up_sums = sums.chunk(2) if any(needs_biases) else (nothing, nothing)
    return grad_x, grad_gate, grad_up, gate_sums, up_sums
