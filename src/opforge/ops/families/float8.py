# SPDX-License-Identifier: Apache-2.0
"""FP8 in plain PyTorch: scales, casts and products of scaled numbers.

Ops hold FP8 numbers as bytes (``torch.uint8``), which every torch can move and compare. Public
functions take and return them as ``torch.float8_e4m3fn`` and ``torch.float8_e5m2``.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from opforge.ops.families.products import rows_of

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
MOST = {E4M3: 448.0, E5M2: 57344.0}
# Of products, in the order of DType in include/opforge/core/types.h. Only references and their
# truth ask for float64.
RESULTS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
SCALINGS = ("row", "tensor")
_NAN, _INF = 0x7F, 0x7C  # as bytes; E4M3 has no infinity
_LEAST = 2.0**-100  # smaller maxima count as this one, so that 1 / scale is finite


def dtype_of(e5m2: bool) -> torch.dtype:
    """The dtype that a flag of a schema means."""
    return E5M2 if e5m2 else E4M3


def is_float8(x: Tensor) -> bool:
    """Whether a tensor has one of the two dtypes."""
    return x.dtype in MOST


def by_row(op: str, scaling: str) -> bool:
    """The public argument ``scaling`` as a flag of a schema."""
    if scaling not in SCALINGS:
        raise ValueError(f"opforge.{op}: scaling must be 'row' or 'tensor', got {scaling!r}")
    return scaling == "row"


def quantise(x: Tensor, dtype: torch.dtype, per_row: bool) -> tuple[Tensor, Tensor]:
    """The bytes of a matrix, and its scales: one per row, or a single one.

    Each finite number is near its byte times the scale. Neither NaN nor infinities affect a scale.
    """
    most, x = MOST[dtype], x.detach().float()
    finite = torch.isfinite(x)
    size = x.abs().masked_fill(~finite, 0.0)
    if not per_row:
        size = size.reshape(1, -1)
    largest = size.amax(1) if size.shape[1] else size.new_zeros(size.shape[0])
    bounded = largest.clamp(min=_LEAST)
    # torch divides by a number, or a number, in two roundings.
    limit = torch.full_like(bounded, most)
    scale = (bounded / limit).masked_fill(largest == 0, 1.0)
    inverse = (limit / bounded).masked_fill(largest == 0, 1.0)
    bits = (x * inverse.unsqueeze(1)).clamp(-most, most).to(dtype).view(torch.uint8)
    bits = bits.masked_fill(~finite, _NAN)
    if dtype == E5M2:
        bits = bits.masked_fill(x == math.inf, _INF).masked_fill(x == -math.inf, _INF | 0x80)
    return bits, scale


def padded(bits: Tensor) -> Tensor:
    """Rows of a multiple of 16 bytes, as the copy engine of a GPU reads them."""
    return torch.nn.functional.pad(bits, (0, -bits.shape[1] % 16))


def values(bits: Tensor, e5m2: bool, wide: torch.dtype) -> Tensor:
    """The numbers that bytes mean, in another dtype."""
    return bits.view(dtype_of(e5m2)).to(wide)


def product(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None = None,
    *,
    e5m2_a: bool = False,
    fast_accum: bool = False,
) -> Tensor:
    """``(a * scale_a) @ (b * scale_b).T + bias`` of bytes, in the dtype of the scales.

    NVIDIA does not document how tensor cores add FP8 products. Measurements of others agree on some
    14 bits, counted from the largest of the 32 products and the sum so far. Kernels therefore add
    shorter sums in float32, unless ``fast_accum``.
    """
    from opforge.truth.rounding import uncertain

    wide = scale_a.dtype
    left, right = values(a, e5m2_a, wide), values(b, False, wide)
    steps = -(-a.shape[1] // 32) if fast_accum else 1
    sums = uncertain(
        left @ right.t(), lambda: left.abs() @ right.abs().t(), 2.0**-13 * max(steps, 1) ** 0.5
    )
    z = sums * (scale_a.unsqueeze(1) * scale_b)  # one alone may overflow
    return z if bias is None else z + bias.to(wide)


def linear(x: Tensor, weight: Tensor, per_row: bool, fast_accum: bool) -> Tensor:
    """``x weightᵀ`` with both cast to E4M3, and in its gradient the incoming one to E5M2."""
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        result: Tensor = _Linear.apply(x, weight, per_row, fast_accum)
        return result
    return multiplied(
        cast(rows_of(x), E4M3, per_row), cast(weight, E4M3, per_row), x, fast_accum=fast_accum
    ).reshape(*x.shape[:-1], weight.shape[0])


Numbers = tuple[Tensor, Tensor]  # bytes whose rows are padded, and their scales


def cast(x: Tensor, dtype: torch.dtype, per_row: bool) -> Numbers:
    """The bytes of a matrix as :func:`quantize_fp8` makes them."""
    bits, scale = quantise(x, dtype, per_row)
    return padded(bits), scale


def multiplied(
    a: Numbers, b: Numbers, like: Tensor, *, e5m2_a: bool = False, fast_accum: bool = False
) -> Tensor:
    """The product of two matrices of numbers in the dtype of ``like``, at least float32 inside."""
    wide = torch.promote_types(like.dtype, torch.float32)
    scales = a[1].to(wide), b[1].to(wide)
    found = product(a[0], b[0], *scales, e5m2_a=e5m2_a, fast_accum=fast_accum)
    return found.to(like.dtype)


def grad_x(grad: Tensor, weight: Tensor, per_row: bool) -> Tensor:
    """The gradient of x through ``x weightᵀ``."""
    rows, columns = cast(rows_of(grad), E5M2, per_row), cast(weight.t(), E4M3, per_row)
    found = multiplied(rows, columns, grad, e5m2_a=True)
    return found.reshape(*grad.shape[:-1], weight.shape[1])


def grad_weight(grad: Tensor, columns_of_x: Numbers, per_row: bool) -> Tensor:
    """The gradient of weight. Of x it takes the transpose, cast."""
    return multiplied(cast(rows_of(grad).t(), E5M2, per_row), columns_of_x, grad, e5m2_a=True)


class _Linear(torch.autograd.Function):
    """The casts pass gradients on as if they did not round."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, per_row: bool, fast_accum: bool) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.per_row = per_row
        with torch.no_grad():
            return linear(x, weight, per_row, fast_accum)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        x, weight = ctx.saved_tensors
        columns = cast(rows_of(x).t(), E4M3, ctx.per_row)
        return (
            grad_x(grad, weight, ctx.per_row),
            grad_weight(grad, columns, ctx.per_row),
            None,
            None,
        )


def once_differentiable(result: Tensor, *inputs: Tensor) -> Tensor:
    """``result`` of ``inputs``, whose gradient is refused rather than taken for zero."""
    if not torch.is_grad_enabled() or not any(x.requires_grad for x in inputs):
        return result
    found: Tensor = _Once.apply(result, *inputs)
    return found


class _Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, result: Tensor, *inputs: Tensor) -> Tensor:
        return result.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        raise NotImplementedError(
            "opforge.fp8_linear: gradients of gradients are not supported for FP8, whose casts "
            "have none"
        )
