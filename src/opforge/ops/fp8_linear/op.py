# SPDX-License-Identifier: Apache-2.0
"""fp8_linear: y = act(x weightᵀ + bias) + residual, multiplied as FP8, made of other ops.

Each call finds the scales of what it casts: x and weight to E4M3, incoming gradients to E5M2. One
pass makes the rows of a matrix for one product and those of its transpose for another, because
tensor cores need both operands with the inner dim contiguous.

For gradients it keeps the transpose of x as FP8, half the bytes of a 16-bit x, and z where there is
an activation. Of x it keeps nothing if the weight is frozen. The weight is a parameter that stays
anyway: the backward casts it again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor

from opforge.op import Backward, Make, Op
from opforge.ops.families import float8, products
from opforge.ops.families.norms import no_tensor
from opforge.ops.families.product_gradients import below


def reference(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    activation: int,
    per_row: bool,
    fast_accum: bool,
    save_x: bool | None,
    save_z: bool,
) -> Tensor:
    """The formula."""
    y = products.finish(sums(x, weight, bias, per_row, fast_accum), activation, 1.0, None, None)
    return y if residual is None else y + residual


def sums(x: Tensor, weight: Tensor, bias: Tensor | None, per_row: bool, fast_accum: bool) -> Tensor:
    """What is activated."""
    z = float8.linear(x, weight, per_row, fast_accum)
    return z if bias is None else z + bias


def z(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: int,
    per_row: bool,
    fast_accum: bool,
    save_z: bool,
) -> Tensor:
    """What is activated, if the backward asks for it."""
    if not save_z or activation == products.NONE:
        return no_tensor(x)
    return sums(x, weight, bias, per_row, fast_accum)


def x_t_scale(x: Tensor, per_row: bool, save_x: bool | None) -> Tensor:
    """The scales of the transpose of x, if the backward asks for it."""
    if not save_x:
        return x.new_empty(0, dtype=torch.float32)
    return float8.cast(products.rows_of(x).t(), float8.E4M3, per_row)[1]


def x_t(x: Tensor, per_row: bool, save_x: bool | None) -> Tensor:
    """The transpose of x as bytes, if the backward asks for it."""
    if not save_x:
        return x.new_empty(0, dtype=torch.uint8)
    return float8.cast(products.rows_of(x).t(), float8.E4M3, per_row)[0]


def recomputes(activation: int, save_z: bool) -> bool:
    """Whether the backward has to make z again."""
    return activation != products.NONE and not save_z


def unsaved(activation: int, save_x: bool | None, save_z: bool) -> list[str]:
    """Of x: its transpose in its place, x itself, or with None nothing."""
    again = recomputes(activation, save_z)
    names = [] if again else ["bias"]
    if save_x is not False and not again:
        names.append("x")
    return names if save_x else [*names, "x_t_scale", "x_t"]


def backward_reference(
    grad_y: Tensor,
    x: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    z: Tensor,
    x_t_scale: Tensor | None,
    x_t: Tensor | None,
    activation: int,
    per_row: bool,
    fast_accum: bool,
    save_z: bool,
    needs_x: bool,
    needs_weight: bool,
    needs_bias: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Through the activation, then two products of the gradient as E5M2."""
    grad = grad_y
    if activation != products.NONE:
        if recomputes(activation, save_z):
            assert x is not None
            z = sums(x, weight, bias, per_row, fast_accum)
        grad = products.finish_backward(grad_y, z, activation, 1.0, None, None)
    nothing = no_tensor(grad_y)
    grad_x = grad_weight = nothing
    if needs_x:
        grad_x = float8.grad_x(grad, weight, per_row)
        grad_x = float8.once_differentiable(grad_x, grad_y, weight)
    if needs_weight:
        if x_t is None or x_t_scale is None:
            assert x is not None
            x_t, x_t_scale = float8.cast(products.rows_of(x).t(), float8.E4M3, per_row)
        grad_weight = float8.grad_weight(grad, (x_t, x_t_scale), per_row)
        grad_weight = float8.once_differentiable(grad_weight, grad_y, weight)
    grad_bias = products.rows_of(grad).sum(0) if needs_bias else nothing
    return grad_x, grad_weight, grad_bias


def validate(
    x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, activation: int
) -> None:
    """The shapes and dtypes fit."""
    products.validate_linear("fp8_linear", x, weight, bias, residual)
    products.validate_options("fp8_linear", activation, False, x)


def cast(x: Tensor, e5m2: bool, per_row: bool, rows: bool, columns: bool) -> tuple[Any, Any]:
    """The rows of x and those of its transpose, bytes and scales each."""
    scale, bits, scale_t, bits_t = below("quantize_fp8")(x, e5m2, per_row, rows, columns)
    return (bits, scale), (bits_t, scale_t)


def multiply(
    a: float8.Numbers,
    b: float8.Numbers,
    dtype: torch.dtype,
    shape: torch.Size | None = None,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    activation: int = products.NONE,
    *,
    e5m2: bool = False,
    fast_accum: bool = False,
    with_z: bool = False,
) -> tuple[Tensor, Tensor]:
    """The product of FP8 numbers. ``shape`` is that of the leading dims of a, one by default."""
    bits = a[0]
    if shape is not None:
        bits = bits.unflatten(0, shape) if shape else bits[0]
    y, z = below("scaled_linear")(
        *(bits, b[0], bias, residual, a[1], b[1], activation, e5m2, fast_accum),
        *(float8.RESULTS.index(dtype), with_z),
    )
    return y, z


def composed(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    activation: int,
    per_row: bool,
    fast_accum: bool,
    save_x: bool | None,
    save_z: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Two casts and a product with all the rest in its epilogue."""
    rows, (x_t, x_t_scale) = cast(x, False, per_row, True, save_x or False)
    y, z = multiply(
        *(rows, cast(weight, False, per_row, True, False)[0], x.dtype, x.shape[:-1]),
        *(bias, residual, activation),
        fast_accum=fast_accum,
        with_z=save_z and activation != products.NONE,
    )
    return y, z, x_t_scale, x_t


def composed_backward(
    grad_y: Tensor,
    x: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    z: Tensor,
    x_t_scale: Tensor | None,
    x_t: Tensor | None,
    activation: int,
    per_row: bool,
    fast_accum: bool,
    save_z: bool,
    needs_x: bool,
    needs_weight: bool,
    needs_bias: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """A pass through the activation, one that casts the gradient for both products, and these."""
    nothing = no_tensor(grad_y)
    grad, grad_x, grad_weight, grad_bias = grad_y, nothing, nothing, nothing
    if activation != products.NONE:
        if recomputes(activation, save_z):
            assert x is not None
            no_activation = products.NONE, per_row, fast_accum, False, False
            z = composed(x, weight, bias, None, *no_activation)[0]
        grad, _, grad_bias = below("linear_dact")(
            *(grad_y, None, z, activation, False, False, False, needs_bias)
        )
    elif needs_bias:
        grad_bias = below("reduce_sum")(products.rows_of(grad_y), [0], False)
    if needs_x or needs_weight:
        rows, columns = cast(grad, True, per_row, needs_x, needs_weight)
    if needs_x:
        _, weight_t = cast(weight, False, per_row, False, True)
        grad_x, _ = multiply(rows, weight_t, grad.dtype, grad.shape[:-1], e5m2=True)
    if needs_weight:
        if x_t is None or x_t_scale is None:
            assert x is not None
            _, (x_t, x_t_scale) = cast(x, False, per_row, False, True)
        grad_weight, _ = multiply(columns, (x_t, x_t_scale), grad.dtype, e5m2=True)
    return grad_x, grad_weight, grad_bias


def cases(make: Make) -> Iterator[tuple[Any, ...]]:
    """Both scalings, every activation, what is saved; unaligned, strided, empty."""
    gelu, tanh, silu, sigmoid = (
        products.NAMES.index(name) for name in ("gelu", "gelu_tanh", "silu", "sigmoid")
    )
    row, tensor, both, neither = (True, False), (False, False), (True, True), (False, False)
    none = products.NONE
    yield make(40, 72), make(24, 72), make(24), None, none, *row, *both
    yield make(2, 9, 40), make(24, 40), make(24), make(2, 9, 24), gelu, *row, *both
    yield make(19, 24), make(40, 24), None, None, products.RELU, *tensor, *both
    yield make(17, 136), make(8, 136), make(8), None, silu, True, True, *neither
    yield make(7, 31), make(29, 31), make(29), make(7, 29), none, *tensor, *neither
    yield make(24, 16).t(), make(24, 32).t(), make(64)[::2], None, tanh, *row, *both
    yield make(16, 48)[:, ::2], make(32, 24), None, make(16, 64)[:, ::2], sigmoid, *row, *both
    yield make(5), make(3, 5), make(3), None, none, *row, *both
    yield make(0, 8), make(16, 8), make(16), None, gelu, *row, *both
    yield make(3, 0), make(16, 0), make(16), None, silu, *row, *neither
    yield make(3, 8), make(0, 8), make(0), None, none, *tensor, *both


def sized(make: Make, rows: int, cols: int, features: int | None = None) -> dict[str, Any]:
    """``rows`` rows to ``cols`` outputs, from ``features`` features or as many as outputs."""
    k = cols if features is None else features
    inputs = make(rows, k), make(cols, k), make(cols), None, products.NONE
    saved = (True, True) if make.requires_grad else (False, False)
    return {
        "row": (*inputs, True, False, *saved),
        "row, fast_accum": (*inputs, True, True, *saved),
        "tensor": (*inputs, False, False, *saved),
    }


def scaled_mm() -> Any:
    """The forward by torch: its ops for the casts, and torch._scaled_mm."""
    multiply = torch._scaled_mm

    def run(
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        residual: Tensor | None,
        activation: int,
        per_row: bool,
        fast_accum: bool,
    ) -> Tensor:
        def cast(matrix: Tensor) -> tuple[Tensor, Tensor]:
            largest = matrix.abs().amax(1, keepdim=True) if per_row else matrix.abs().amax()
            scale = largest.float() / float8.MOST[float8.E4M3]
            return (matrix.float() / scale).to(float8.E4M3), scale

        rows, scale = cast(products.rows_of(x))
        columns, weight_scale = cast(weight)
        z: Tensor = multiply(
            *(rows, columns.t(), scale, weight_scale.t(), bias),
            out_dtype=x.dtype,
            use_fast_accum=fast_accum,
        )
        y = products.finish(z.unflatten(0, x.shape[:-1]), activation, 1.0, None, None)
        return y if residual is None else y + residual

    return run


op = Op(
    schema="fp8_linear(Tensor x, Tensor weight, Tensor? bias, Tensor? residual, int activation, "
    "bool per_row, bool fast_accum, bool? save_x, bool save_z) "
    "-> (Tensor y, Tensor z, Tensor x_t_scale, Tensor x_t)",
    reference=reference,
    statistics={"z": z, "x_t_scale": x_t_scale, "x_t": x_t},
    composed=composed,
    backward=Backward(
        "fp8_linear_backward(Tensor grad_y, Tensor? x, Tensor weight, Tensor? bias, Tensor z, "
        "Tensor? x_t_scale, Tensor? x_t, int activation, bool per_row, bool fast_accum, "
        "bool save_z, bool needs_x, bool needs_weight, bool needs_bias) "
        "-> (Tensor grad_x, Tensor grad_weight, Tensor grad_bias)",
        backward_reference,
        composed=composed_backward,
        shared={"residual": "grad_y"},
        unsaved=unsaved,
    ),
    dtypes=(torch.float32, torch.float16, torch.bfloat16),
    validate=validate,
    cases=cases,
    operations=lambda x, weight: 2 * x.numel() * weight.shape[0],
    product=lambda x, weight: (products.rows_of(x), weight.t()),
    sized=sized,
    peers={"torch._scaled_mm": scaled_mm},
    rowwise=True,
    autocast="low",
)


def fp8_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    residual: Tensor | None = None,
    *,
    scaling: Literal["row", "tensor"] = "row",
    fast_accum: bool = False,
) -> Tensor:
    """``activation(x @ weight.T + bias) + residual``, multiplied as FP8 numbers.

    x and weight are cast to E4M3 in each call, and incoming gradients to E5M2, with scales from
    their largest values. The results have the dtype of x. docs/fp8.md shows their errors.

    Args:
        x: (..., features), bfloat16, float16 or float32.
        weight: (outputs, features), as of :class:`torch.nn.Linear`, in the dtype of x.
        bias: (outputs,), or None.
        activation: None, "relu", "gelu", "gelu_tanh", "silu" or "sigmoid".
        residual: is added to the result; of its shape.
        scaling: a scale per "row" of what is multiplied, or one per "tensor".
        fast_accum: let the tensor cores sum the forward alone, in about 14 bits: faster and less
            exact. Gradients are always summed in float32.
    """
    for what, numbers in (("x", x), ("weight", weight)):
        if float8.is_float8(numbers):
            raise TypeError(
                f"opforge.fp8_linear: {what} is {numbers.dtype} without scales, but x and weight "
                "must be bfloat16, float16 or float32; for FP8 numbers, call "
                "opforge.scaled_linear(x, weight, x_scale, weight_scale)"
            )
    grads = torch.is_grad_enabled()
    save_x = grads if weight.requires_grad else None
    save_z = grads and any(t is not None and t.requires_grad for t in (x, weight, bias))
    y: Tensor = op(
        *(x, weight, bias, residual, products.code_of("fp8_linear", activation)),
        *(float8.by_row("fp8_linear", scaling), fast_accum, save_x, save_z),
    )
    return y
