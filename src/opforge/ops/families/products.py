# SPDX-License-Identifier: Apache-2.0
"""Code that linear layers share: activations by name, and what follows a product."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar, cast

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
MOST = 2**31 - 1024  # rows or columns: tiles reach beyond the end


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
    if not all(limit is None or isinstance(limit, (int, float)) for limit in clamp):
        raise TypeError(f"opforge.{op}: the limits of clamp must be numbers or None, got {clamp!r}")
    if low is not None and high is not None and not low <= high:
        raise ValueError(f"opforge.{op}: clamp must be (low, high) with low <= high, got {clamp!r}")
    return low, high


Tensors = TypeVar("Tensors", bound="tuple[Tensor | None, ...]")


def lowered(tensors: Tensors) -> Tensors:
    """Cast as autocast casts the inputs of matrix products, if it is on."""
    given = [t for t in tensors if t is not None]
    on = all(torch.is_autocast_enabled(t.device.type) for t in given)
    if not on or any(t.dtype == torch.float64 for t in given):
        return tensors
    dtype = torch.get_autocast_dtype(given[0].device.type)
    return cast("Tensors", tuple(None if t is None else t.to(dtype) for t in tensors))


def rows_of(x: Tensor) -> Tensor:
    """All dims but the last one as rows."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def through(parts: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
    """The gradient of x, given those of ``x weightᵀ`` for each weight."""
    total = parts[0] @ weights[0]
    for part, weight in zip(parts[1:], weights[1:], strict=True):
        total = total + part @ weight
    return total


def add_product(total: Tensor, d: Tensor, x: Tensor, beta: int = 1) -> None:
    """``total = beta * total + d.T @ x`` in the dtype of the total, which may be wider."""
    if total.dtype == x.dtype:
        total.addmm_(d.t(), x, beta=beta)
    elif total.device.type == "cuda":
        torch.addmm(total, d.t(), x, beta=beta, out_dtype=total.dtype, out=total)
    else:
        # The CPU has no such product: multiply in float, an eighth of the rows at a time.
        x, rows = x.to(total.dtype), max(1, -(-d.shape[1] // 8))
        for slab, part in zip(total.split(rows), d.split(rows, 1), strict=True):
            slab.addmm_(part.to(total.dtype).t(), x, beta=beta)


def validate_linear(
    op: str,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    names: tuple[str, str] = ("weight", "bias"),
) -> None:
    """The shapes and dtypes of a linear layer fit. ``names`` are those of weight and bias."""
    its, biases = names
    if x.dim() == 0:
        raise ValueError(f"opforge.{op}: x must have at least one dimension, got a scalar")
    if weight.dim() != 2:
        raise ValueError(
            f"opforge.{op}: {its} must be (outputs, features), got shape {tuple(weight.shape)}"
        )
    if x.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"opforge.{op}: the last dim of x and of {its} must agree, got x {tuple(x.shape)} "
            f"and {its} {tuple(weight.shape)}; if {its} is (features, outputs), pass {its}.t()"
        )
    shape = (*x.shape[:-1], weight.shape[0])
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(
            f"opforge.{op}: {biases} must have shape ({weight.shape[0]},), one value per output of "
            f"{its} {tuple(weight.shape)}; got {tuple(bias.shape)}"
        )
    if residual is not None and residual.shape != shape:
        raise ValueError(
            f"opforge.{op}: residual must have the shape of the result, {shape} for x "
            f"{tuple(x.shape)} and {its} {tuple(weight.shape)}; got {tuple(residual.shape)}"
        )
    for name, other in ((its, weight), (biases, bias), ("residual", residual)):
        check_dtype(op, x, name, other)
    check_sizes(op, its, weight, x)


def check_sizes(op: str, its: str, weight: Tensor, x: Tensor) -> None:
    """A GPU's products, ours and the library's, count rows and columns in 32 bits."""
    if not weight.is_cuda:
        return
    sizes = {f"outputs of {its}": weight.shape[0], f"features of {its}": weight.shape[1]}
    if x.shape[-1] > 0:
        sizes["rows of x"] = x.numel() // x.shape[-1]
    for what, size in sizes.items():
        if size >= MOST:
            raise ValueError(
                f"opforge.{op}: {size} {what} are too many for a product on a GPU, which takes "
                f"fewer than {MOST}; make it in parts"
            )


def validate_gated(
    op: str,
    x: Tensor,
    gate_weight: Tensor,
    up_weight: Tensor | None,
    gate_bias: Tensor | None,
    up_bias: Tensor | None,
) -> None:
    """The shapes and dtypes of two linear layers fit, or of one with the rows of both."""
    validate_linear(op, x, gate_weight, gate_bias, None, ("gate_weight", "gate_bias"))
    if up_weight is not None:
        validate_linear(op, x, up_weight, up_bias, None, ("up_weight", "up_bias"))
    if up_weight is None:
        if up_bias is not None:
            raise ValueError(
                f"opforge.{op}: without up_weight, gate_bias holds both biases; pass "
                "torch.cat([gate_bias, up_bias]) as gate_bias instead of up_bias"
            )
        if gate_weight.shape[0] % 2:
            raise ValueError(
                f"opforge.{op}: without up_weight, gate_weight holds the rows of both and must "
                f"have an even number of them; it has shape {tuple(gate_weight.shape)}"
            )
    elif gate_weight.shape != up_weight.shape:
        raise ValueError(
            f"opforge.{op}: gate_weight and up_weight must have one shape, got gate_weight "
            f"{tuple(gate_weight.shape)} and up_weight {tuple(up_weight.shape)}"
        )


def check_dtype(op: str, x: Tensor, name: str, other: Tensor | None) -> None:
    """An argument has the dtype of x."""
    if other is not None and other.dtype != x.dtype:
        raise TypeError(
            f"opforge.{op}: x is {x.dtype} but {name} is {other.dtype}; "
            f"convert one, as in {name}.to(x.dtype)"
        )


def validate_options(
    op: str,
    activation: int,
    tf32: bool,
    x: Tensor,
    scale: float = 1.0,
    low: float | None = None,
    high: float | None = None,
) -> None:
    """There is such an activation, TF32 is for float32, and numbers are numbers."""
    if not isinstance(x, Tensor):
        raise TypeError(f"opforge.{op}: x must be a tensor, got {type(x).__name__}")
    if not isinstance(scale, (int, float)):
        raise TypeError(f"opforge.{op}: scale must be a number, got {scale!r}")
    if not math.isfinite(scale):
        raise ValueError(f"opforge.{op}: scale must be finite, got {scale}")
    if any(limit is not None and math.isnan(limit) for limit in (low, high)):
        raise ValueError(f"opforge.{op}: the limits of clamp must not be NaN, got {(low, high)}")
    if not 0 <= activation < len(NAMES):
        raise ValueError(f"opforge.{op}: there is no activation {activation}")
    if tf32 and x.dtype != torch.float32:
        raise TypeError(f"opforge.{op}: tf32=True is for float32, but x is {x.dtype}")


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


def gate(z: Tensor, activation: int) -> Tensor:
    """``activation(gate) * up`` of the two halves of the last dim of ``z``."""
    first, second = z.chunk(2, -1)
    return ACTIVATIONS[NAMES[activation]](first) * second


def gate_backward(grad: Tensor, z: Tensor, activation: int) -> Tensor:
    """The gradient of z through :func:`gate`, itself differentiable."""
    first, second = z.chunk(2, -1)
    name = NAMES[activation]
    passed = _SLOPES[name](grad * second, first)
    return torch.cat([passed, grad * ACTIVATIONS[name](first)], -1)
