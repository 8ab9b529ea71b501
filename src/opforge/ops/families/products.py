# SPDX-License-Identifier: Apache-2.0
"""Code that linear layers share: activations by name, and what follows a product."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

# In the order of Activation in include/opforge/families/product/finish.h.
ACTIVATIONS: dict[str | None, Callable[[Tensor], Tensor]] = {
    None: lambda z: z,
    "relu": torch.relu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda z: functional.gelu(z, approximate="tanh"),
    "silu": functional.silu,
    "sigmoid": torch.sigmoid,
}
NAMES = tuple(ACTIVATIONS)
NONE, RELU = NAMES.index(None), NAMES.index("relu")


def code_of(op: str, activation: str | None) -> int:
    """The number of an activation in the schema."""
    if activation not in NAMES:
        known = ", ".join(repr(name) for name in NAMES)
        raise ValueError(f"opforge.{op}: activation must be one of {known}, got {activation!r}")
    return NAMES.index(activation)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, tf32: bool) -> Tensor:
    """``x @ weight.T + bias``. With ``tf32``, kernels may round what they multiply to 11 bits."""
    if not tf32:
        return functional.linear(x, weight, bias)
    from opforge.truth.rounding import coarse

    bits = 11
    return coarse(functional.linear(coarse(x, bits), coarse(weight, bits), bias), bits, True)


def finish(
    z: Tensor, activation: int, scale: float, low: float | None, high: float | None
) -> Tensor:
    """``clamp(scale * activation(z), low, high)``."""
    y = ACTIVATIONS[NAMES[activation]](z)
    if scale != 1.0:
        y = y * scale
    return y if low is None and high is None else y.clamp(low, high)


def limits_of(
    op: str, clamp: tuple[float | None, float | None] | None
) -> tuple[float | None, float | None]:
    """The two limits of the public argument ``clamp``."""
    if clamp is None:
        return None, None
    if not isinstance(clamp, (tuple, list)) or len(clamp) != 2:
        raise TypeError(
            f"opforge.{op}: clamp must be a pair (low, high), either of which may be None, "
            f"got {clamp!r}"
        )
    low, high = clamp
    if low is not None and high is not None and not low <= high:
        raise ValueError(f"opforge.{op}: clamp must be (low, high) with low <= high, got {clamp!r}")
    return low, high


def rows_of(x: Tensor) -> Tensor:
    """All dims but the last one as rows."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def validate_linear(
    op: str, x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None
) -> None:
    """The shapes and dtypes of a linear layer fit."""
    if x.dim() == 0:
        raise ValueError(f"opforge.{op}: x must have at least one dimension, got a scalar")
    if weight.dim() != 2:
        raise ValueError(
            f"opforge.{op}: weight must be (outputs, features), got shape {tuple(weight.shape)}"
        )
    if x.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"opforge.{op}: the last dim of x and of weight must agree, got x {tuple(x.shape)} "
            f"and weight {tuple(weight.shape)}; if weight is (features, outputs), pass weight.t()"
        )
    shape = (*x.shape[:-1], weight.shape[0])
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(
            f"opforge.{op}: bias must have shape ({weight.shape[0]},), one value per output of "
            f"weight {tuple(weight.shape)}; got {tuple(bias.shape)}"
        )
    if residual is not None and residual.shape != shape:
        raise ValueError(
            f"opforge.{op}: residual must have the shape of the result, {shape} for x "
            f"{tuple(x.shape)} and weight {tuple(weight.shape)}; got {tuple(residual.shape)}"
        )
    for name, other in (("weight", weight), ("bias", bias), ("residual", residual)):
        if other is not None and other.dtype != x.dtype:
            raise TypeError(
                f"opforge.{op}: x is {x.dtype} but {name} is {other.dtype}; "
                f"convert one, as in {name}.to(x.dtype)"
            )


def finish_backward(
    grad_y: Tensor,
    z: Tensor,
    activation: int,
    scale: float,
    low: float | None,
    high: float | None,
) -> Tensor:
    """The gradient of z through :func:`finish`, itself differentiable."""
    grad = grad_y * scale
    if low is not None or high is not None:
        value = ACTIVATIONS[NAMES[activation]](z) * scale
        passes = torch.ones_like(value, dtype=torch.bool)
        if low is not None:
            passes = passes & ~(value < low)
        if high is not None:
            passes = passes & ~(value > high)
        grad = torch.where(passes, grad, 0.0)
    return _SLOPES[NAMES[activation]](grad, z)


def _silu_slope(grad: Tensor, z: Tensor) -> Tensor:
    s = torch.sigmoid(z)
    return grad * s * (1 + z * (1 - s))


_SLOPES: dict[str | None, Callable[[Tensor, Tensor], Tensor]] = {
    None: lambda grad, z: grad,
    "relu": lambda grad, z: torch.where(z <= 0, 0.0, grad),
    "gelu": lambda grad, z: torch.ops.aten.gelu_backward(grad, z, approximate="none"),
    "gelu_tanh": lambda grad, z: torch.ops.aten.gelu_backward(grad, z, approximate="tanh"),
    "silu": _silu_slope,
    "sigmoid": lambda grad, z: grad * torch.sigmoid(z) * (1 - torch.sigmoid(z)),
}
