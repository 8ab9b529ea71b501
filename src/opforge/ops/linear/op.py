# SPDX-License-Identifier: Apache-2.0
"""linear: y = clamp(scale * act(x weightᵀ + bias)) + residual, one kernel on GPUs since Ampere.

For gradients it keeps the product before the activation, z. For a relu alone it keeps y instead,
which says as much and which the next layer holds anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from opforge.op import FLOATS, Backward, Build, Make, Op
from opforge.ops.families import product_gradients, products
from opforge.ops.families.norms import no_tensor

from . import main_grad as main_grads


def reference(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    activation: int,
    scale: float,
    low: float | None,
    high: float | None,
    tf32: bool,
    save: bool,
) -> Tensor:
    """The formula."""
    z = products.linear(x, weight, bias, tf32)
    y = products.finish(z, activation, scale, low, high)
    return y if residual is None else y + residual


def uses_y(
    activation: int, scale: float, low: float | None, high: float | None, residual: bool
) -> bool:
    """Whether the result tells all that the backward needs of the product: a relu alone."""
    plain = scale == 1.0 and low is None and high is None and not residual
    return activation == products.RELU and plain


def z(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    activation: int,
    scale: float,
    low: float | None,
    high: float | None,
    tf32: bool,
    save: bool,
) -> Tensor:
    """The product before the activation, if the backward needs it."""
    changes = activation != products.NONE or low is not None or high is not None
    if not save or not changes or uses_y(activation, scale, low, high, residual is not None):
        return no_tensor(x)
    return products.linear(x, weight, bias, tf32)


def backward_reference(
    grad_y: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    y: Tensor | None,
    z: Tensor,
    activation: int,
    scale: float,
    low: float | None,
    high: float | None,
    tf32: bool,
    needs_x: bool,
    needs_weight: bool,
    needs_bias: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Through what follows the product, then two products and a sum."""
    grad = grad_y
    if activation != products.NONE or scale != 1.0 or low is not None or high is not None:
        z = products.linear(x, weight, bias, tf32)
        grad = products.finish_backward(grad_y, z, activation, scale, low, high)
    nothing = no_tensor(grad_y)
    grad_x = grad @ weight if needs_x else nothing
    grad_weight = nothing
    if needs_weight:
        grad_weight = products.rows_of(grad).t() @ products.rows_of(x)
    grad_bias = products.rows_of(grad).sum(0) if needs_bias else nothing
    return grad_x, grad_weight, grad_bias


def validate(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    activation: int,
    scale: float,
    low: float | None,
    high: float | None,
    tf32: bool,
) -> None:
    """The shapes and dtypes fit, and the options make sense."""
    products.validate_linear("linear", x, weight, bias, residual)
    products.validate_options("linear", activation, tf32, x, scale, low, high)


def cases(make: Make) -> Iterator[tuple[Any, ...]]:
    """Sizes around a tile's, aligned or not; every activation; transposed, empty, strided."""
    plain = 1.0, None, None, False, True
    gelu, tanh, silu, sigmoid = (
        products.NAMES.index(name) for name in ("gelu", "gelu_tanh", "silu", "sigmoid")
    )
    yield make(64, 72), make(136, 72), make(136), None, gelu, *plain
    yield make(2, 33, 40), make(24, 40), make(24), make(2, 33, 24), tanh, *plain
    yield make(130, 64), make(72, 64), None, None, products.RELU, *plain
    yield make(9, 136), make(264, 136), make(264), None, silu, 0.5, -0.2, 0.3, False, True
    yield make(17, 24), make(8, 24), None, make(17, 8), sigmoid, -1.5, None, 0.1, False, False
    yield make(7, 31), make(29, 31), make(29), make(7, 29), gelu, *plain  # unaligned
    yield make(40, 24).t(), make(40, 32).t(), make(64)[::2], None, products.NONE, *plain
    yield make(5), make(3, 5), make(3), None, products.RELU, 2.0, None, None, False, True
    yield make(0, 8), make(16, 8), make(16), None, gelu, *plain
    yield make(3, 0), make(16, 0), make(16), None, silu, *plain
    yield make(3, 8), make(0, 8), make(0), None, products.NONE, *plain
    yield make(16, 48)[:, ::2], make(32, 24), None, make(16, 64)[:, ::2], tanh, *plain


def sized(make: Make, rows: int, cols: int, features: int | None = None) -> dict[str, Any]:
    """``rows`` rows to ``cols`` outputs, from ``features`` features or as many as outputs."""
    k = cols if features is None else features
    inputs = make(rows, k), make(cols, k), make(cols), None
    return {
        name: (*inputs, products.NAMES.index(name), 1.0, None, None, False, make.requires_grad)
        for name in ("relu", "gelu", "gelu_tanh", "silu")
    }


def cublaslt() -> Callable[..., Tensor]:
    """The library's product with bias and activation in its epilogue. torch has no gradient of it.

    Its gelu is the approximation by tanh.
    """

    def run(x: Tensor, weight: Tensor, bias: Tensor, activation: int) -> Tensor:
        name = products.NAMES[activation]
        if name not in ("relu", "gelu_tanh"):
            raise NotImplementedError(f"torch reaches no epilogue of cuBLASLt with {name}")
        y: Tensor = torch._addmm_activation(bias, x, weight.t(), use_gelu=name != "relu")
        return y

    return run


def max_autotune() -> Callable[..., Tensor]:
    """The formula by torch.compile, which may also try products of Triton."""

    def formula(x: Tensor, weight: Tensor, bias: Tensor, activation: int) -> Tensor:
        return products.ACTIVATIONS[products.NAMES[activation]](functional.linear(x, weight, bias))

    compiled: Callable[..., Tensor] = torch.compile(
        formula, mode="max-autotune-no-cudagraphs", dynamic=False
    )
    return lambda x, weight, bias, activation: compiled(x, weight, bias, activation)


def unsaved(
    residual: Tensor | None, activation: int, scale: float, low: float | None, high: float | None
) -> list[str]:
    """y is only kept in place of z."""
    return [] if uses_y(activation, scale, low, high, residual is not None) else ["y"]


op = Op(
    schema="linear(Tensor x, Tensor weight, Tensor? bias, Tensor? residual, int activation, "
    "float scale, float? low, float? high, bool tf32, bool save) -> (Tensor y, Tensor z)",
    reference=reference,
    statistics={"z": z},
    backward=Backward(
        "linear_backward(Tensor grad_y, Tensor x, Tensor weight, Tensor? bias, Tensor? y, "
        "Tensor z, int activation, float scale, float? low, float? high, bool tf32, "
        "bool needs_x, bool needs_weight, bool needs_bias) "
        "-> (Tensor grad_x, Tensor grad_weight, Tensor grad_bias)",
        backward_reference,
        shared={"residual": "grad_y"},
        unsaved=unsaved,
    ),
    dtypes=FLOATS,
    validate=validate,
    cases=cases,
    operations=lambda x, weight: 2 * x.numel() * weight.shape[0],
    product=lambda x, weight: (products.rows_of(x), weight.t()),
    sized=sized,
    peers={"cuBLASLt": cublaslt, "max-autotune": max_autotune},
    rowwise=True,
    autocast="low",
    build=Build(archs=["9.0a"], by_dtype=["cuda"], on_demand=["units/*.cu"]),
)


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    residual: Tensor | None = None,
    *,
    scale: float = 1.0,
    clamp: tuple[float | None, float | None] | None = None,
    tf32: bool = False,
    main_grad: Tensor | None = None,
) -> Tensor:
    """``clamp(scale * activation(x @ weight.T + bias)) + residual``.

    Products are summed in float32 for 16-bit inputs. What follows is applied to the sums before
    they are rounded.

    Args:
        x: (..., features).
        weight: (outputs, features), as of :class:`torch.nn.Linear`; rows or columns contiguous.
        bias: (outputs,), or None.
        activation: None, "relu", "gelu", "gelu_tanh", "silu" or "sigmoid".
        residual: is added to the result; of its shape.
        scale: a factor, applied after the activation.
        clamp: limits (low, high) of the scaled value, each a number or None.
        tf32: multiply float32 as TF32: with 10 bits of the mantissa, many times as fast. Otherwise
            float32 products follow ``torch.backends.cuda.matmul``.
        main_grad: a float32 tensor of the weight's shape (float64 for float64). Each backward adds
            the gradient of ``weight`` to it, without rounding to 16 bits, and gives none to
            ``weight``. That includes ``torch.autograd.grad`` of other tensors. Repeated runs have
            the same bits. ``torch.compile`` leaves such a call out of its graph, and it can be
            differentiated once.
    """
    code = products.code_of("linear", activation)
    low, high = products.limits_of("linear", clamp)
    # Kernels ignore an option that does not apply.
    products.validate_options("linear", code, tf32, x, scale, low, high)
    save = torch.is_grad_enabled() and any(
        t is not None and t.requires_grad for t in (x, weight, bias)
    )
    options = code, float(scale), low, high, tf32
    y: Tensor
    if main_grad is None:
        y = op(x, weight, bias, residual, *options, save)
        return y
    product_gradients.check_total("linear", "main_grad", main_grad, weight)
    x, weight, bias, residual = products.lowered((x, weight, bias, residual))
    validate(x, weight, bias, residual, *options)
    by_y = uses_y(*options[:4], residual is not None)
    y = main_grads.linear(main_grad, x, weight, bias, residual, options, by_y)
    return y
