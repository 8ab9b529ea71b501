# SPDX-License-Identifier: Apache-2.0
"""scaled_linear: a linear layer of FP8 numbers with scales, one kernel on Hopper GPUs.

Tensor cores sum FP8 products in about 14 bits. The kernels add the sums of each 128 products in
float32, unless ``fast_accum``. Scales, bias, activation and residual are part of the kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from opforge.op import Build, Make, Op
from opforge.ops.families import float8, products
from opforge.ops.families.norms import no_tensor


def reference(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    x_scale: Tensor,
    weight_scale: Tensor,
    activation: int,
    e5m2: bool,
    fast_accum: bool,
    dtype: int,
    with_z: bool,
) -> tuple[Tensor, Tensor]:
    """The formula. Float64 scales ask for a float64 result, as the truth of `opforge check`."""
    result = float8.RESULTS[dtype]
    if x_scale.dtype == torch.float64:
        result = torch.float64
    z = float8.product(
        products.rows_of(x),
        weight,
        x_scale.to(torch.promote_types(x_scale.dtype, result)),
        weight_scale,
        bias,
        e5m2_a=e5m2,
        fast_accum=fast_accum,
    )
    z = z.to(result).reshape(*x.shape[:-1], weight.shape[0])
    y = products.finish(z, activation, 1.0, None, None)
    y = y if residual is None else y + residual
    return y, z if with_z else no_tensor(z)


def validate(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    x_scale: Tensor,
    weight_scale: Tensor,
    activation: int,
    dtype: int,
) -> None:
    """The shapes and dtypes fit."""
    if not 0 <= dtype < len(float8.RESULTS):
        raise ValueError(f"opforge.scaled_linear: there is no dtype {dtype}")
    products.validate_linear("scaled_linear", x, weight, None, None)
    products.validate_options("scaled_linear", activation, False, x)
    for what, of, count, name, scale in (
        ("x", x, math.prod(x.shape[:-1]), "x_scale", x_scale),
        ("weight", weight, weight.shape[0], "weight_scale", weight_scale),
    ):
        if scale.dim() != 1 or scale.numel() not in (1, count):
            raise ValueError(
                f"opforge.scaled_linear: {name} must have one value, or {count}: one per row of "
                f"{what} {tuple(of.shape)}; got shape {tuple(scale.shape)}"
            )
    result, shape = float8.RESULTS[dtype], (*x.shape[:-1], weight.shape[0])
    for name, other, wanted in (("bias", bias, shape[-1:]), ("residual", residual, shape)):
        if other is None:
            continue
        if other.shape != wanted:
            raise ValueError(
                f"opforge.scaled_linear: {name} must have shape {tuple(wanted)} for x "
                f"{tuple(x.shape)} and weight {tuple(weight.shape)}; got {tuple(other.shape)}"
            )
        if other.dtype != result:
            raise TypeError(
                f"opforge.scaled_linear: {name} is {other.dtype} but the result is {result}; "
                f"pass out_dtype={other.dtype}, or {name}.to({result})"
            )


def numbers(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    *,
    per_row: bool = True,
    e5m2: bool = False,
) -> tuple[Any, ...]:
    """The tensor arguments for two matrices, cast in plain PyTorch."""
    x_bits, x_scale = float8.cast(x, float8.dtype_of(e5m2), per_row)
    weight_bits, weight_scale = float8.cast(weight, float8.E4M3, per_row)
    return x_bits, weight_bits, bias, residual, x_scale, weight_scale


def cases(make: Make) -> Iterator[tuple[Any, ...]]:
    """Both types and scalings; sizes around a tile's; what follows the product; strided, empty."""
    dtype = float8.RESULTS.index(make.dtype)
    none, relu, gelu, silu = (products.NAMES.index(n) for n in (None, "relu", "gelu", "silu"))
    plain, with_z = (False, False, dtype, False), (False, False, dtype, True)
    e5m2 = none, True, False, dtype, False
    yield *numbers(make(70, 144), make(40, 144), make(40)), none, *plain
    yield *numbers(make(130, 272), make(72, 272), make(72)), gelu, *with_z
    both = make(66, 160), make(264, 160)
    yield *numbers(*both, None, make(66, 264), per_row=False), relu, *plain
    both = make(33, 144), make(40, 144)
    yield *numbers(*both, make(40), make(33, 40)), silu, False, True, dtype, True
    yield *numbers(make(136, 72), make(24, 72), e5m2=True), *e5m2
    yield *numbers(make(9, 300), make(136, 300), per_row=False, e5m2=True), *e5m2
    yield *numbers(make(5, 40), make(24, 40), make(24), e5m2=True), silu, True, False, dtype, False
    x, weight, _, _, *scales = numbers(make(7, 31), make(29, 31))
    yield x[:, :31], weight[:, :31], make(58)[::2], None, *scales, none, *plain
    yield x[:, 1:32:2], weight[:, 1:32:2], None, make(29, 7).t(), *scales, none, *plain
    x, *rest = numbers(make(6, 48), make(16, 48), make(16), make(2, 3, 16))
    yield x.view(2, 3, 48), *rest, gelu, *plain
    x, *rest = numbers(make(1, 48), make(16, 48))
    yield x[0], *rest, none, *plain
    yield *numbers(make(0, 16), make(8, 16), make(8)), gelu, *with_z
    yield *numbers(make(3, 0), make(8, 0), make(8)), silu, *with_z
    yield *numbers(make(3, 16), make(0, 16)), none, *plain


def sized(make: Make, rows: int, cols: int, features: int | None = None) -> dict[str, Any]:
    """``rows`` rows to ``cols`` outputs, from ``features`` features or as many as outputs."""
    k = cols if features is None else features
    x, weight, bias = make(rows, k), make(cols, k), make(cols)
    dtype, made = float8.RESULTS.index(make.dtype), {}
    for name, per_row in (("row", True), ("tensor", False)):
        tensors = numbers(x, weight, bias, per_row=per_row)
        made[name] = *tensors, products.NONE, False, False, dtype, False
        made[f"{name}, fast_accum"] = *tensors, products.NONE, False, True, dtype, False
    return made


def scaled_mm() -> Callable[..., Any]:
    """torch's product of FP8 numbers, and torch's ops for what follows it."""
    multiply = torch._scaled_mm

    def run(
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        residual: Tensor | None,
        x_scale: Tensor,
        weight_scale: Tensor,
        activation: int,
        e5m2: bool,
        fast_accum: bool,
        dtype: int,
    ) -> Tensor:
        per_row = x_scale.numel() > 1
        z: Tensor = multiply(
            products.rows_of(x).view(float8.dtype_of(e5m2)),
            weight.view(float8.E4M3).t(),
            scale_a=x_scale.unsqueeze(1) if per_row else x_scale.view(()),
            scale_b=weight_scale.unsqueeze(0) if per_row else weight_scale.view(()),
            bias=bias,
            out_dtype=float8.RESULTS[dtype],
            use_fast_accum=fast_accum,
        )
        y = products.finish(z.unflatten(0, x.shape[:-1]), activation, 1.0, None, None)
        return y if residual is None else y + residual

    return run


op = Op(
    schema="scaled_linear(Tensor x, Tensor weight, Tensor? bias, Tensor? residual, "
    "Tensor x_scale, Tensor weight_scale, int activation, bool e5m2, bool fast_accum, int dtype, "
    "bool with_z) -> (Tensor y, Tensor z)",
    reference=reference,
    dtypes=(torch.float32, torch.float16, torch.bfloat16),
    own_dtypes={
        "bias": float8.RESULTS,
        "residual": float8.RESULTS,
        "x": (torch.uint8,),
        "weight": (torch.uint8,),
        "x_scale": (torch.float32,),
        "weight_scale": (torch.float32,),
    },
    validate=validate,
    cases=cases,
    operations=lambda x, weight: 2 * x.numel() * weight.shape[0],
    sized=sized,
    peers={"torch._scaled_mm": scaled_mm},
    rowwise=True,
    build=Build(archs=["9.0a"], on_demand=["units/*.cu"]),
)


def scaled_linear(
    x: Tensor,
    weight: Tensor,
    x_scale: Tensor | None = None,
    weight_scale: Tensor | None = None,
    bias: Tensor | None = None,
    activation: str | None = None,
    residual: Tensor | None = None,
    *,
    out_dtype: torch.dtype = torch.bfloat16,
    fast_accum: bool = False,
) -> Tensor:
    """``activation((x * x_scale) @ (weight * weight_scale).T + bias) + residual`` of FP8 numbers.

    :func:`opforge.quantize_fp8` makes them, so that a weight is cast once for many calls. Bias,
    residual and scales are differentiable; the numbers are not, see :func:`opforge.fp8_linear`.

    Args:
        x: (..., features), ``torch.float8_e4m3fn`` or ``torch.float8_e5m2``.
        weight: (outputs, features), ``torch.float8_e4m3fn``.
        x_scale: float32, (..., 1) for a scale per row, or one value.
        weight_scale: float32, (outputs, 1), or one value.
        bias: (outputs,), in ``out_dtype``, or None.
        activation: None, "relu", "gelu", "gelu_tanh", "silu" or "sigmoid".
        residual: is added to the result; of its shape and dtype.
        out_dtype: of the result: bfloat16, float16 or float32.
        fast_accum: sum in the tensor cores alone, in about 14 bits: faster and less exact.
    """
    name = "opforge.scaled_linear"
    for what, numbers, scale in (("x", x, x_scale), ("weight", weight, weight_scale)):
        if not float8.is_float8(numbers):
            raise TypeError(
                f"{name}: {what} must be FP8, got {numbers.dtype}; pass what "
                f"opforge.quantize_fp8({what}) returns, or use opforge.fp8_linear, which casts"
            )
        if scale is None:
            raise TypeError(
                f"{name}: {what} is {numbers.dtype}, whose values mean little without their "
                f"scale; pass {what}_scale, the second result of opforge.quantize_fp8, or "
                "torch.ones((), device=x.device) if there is none"
            )
    assert x_scale is not None
    assert weight_scale is not None
    if weight.dtype != float8.E4M3:
        raise TypeError(
            f"{name}: weight must be torch.float8_e4m3fn, got {weight.dtype}; only x may be "
            "torch.float8_e5m2"
        )
    if out_dtype not in op.dtypes:
        raise TypeError(
            f"{name}: out_dtype must be torch.bfloat16, torch.float16 or torch.float32, "
            f"got {out_dtype}"
        )
    y: Tensor = op(
        x.view(torch.uint8),
        weight.view(torch.uint8),
        bias,
        residual,
        x_scale.reshape(-1),
        weight_scale.reshape(-1),
        products.code_of("scaled_linear", activation),
        x.dtype == float8.E5M2,
        fast_accum,
        float8.RESULTS.index(out_dtype),
        False,
    )[0]
    return y
