# SPDX-License-Identifier: Apache-2.0
"""matmul: the product of two matrices, by a kernel of your choice.

The kernels are the rungs of a ladder: each has one idea more than the one before (docs/ladder.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from opforge.op import FLOATS, Backward, Build, Make, Op
from opforge.ops.families.norms import no_tensor
from opforge.ops.families.product_gradients import below

# In the order of Rung in rungs/options.h.
KERNELS = (None, "naive", "coalesced", "tiled", "registers", "wmma", "mma", "hopper")
SHORT = (torch.float16, torch.bfloat16)


def takes(kernel: str | None, dtype: torch.dtype, tf32: bool) -> bool:
    """Whether a kernel multiplies such elements."""
    if tf32:
        return dtype == torch.float32 and kernel in (None, "mma", "hopper")
    return dtype in SHORT or kernel not in ("wmma", "mma", "hopper")


def reference(a: Tensor, b: Tensor, kernel: int, tf32: bool) -> Tensor:
    """The formula. With ``tf32``, kernels may round what they multiply to 11 bits."""
    if not tf32:
        return torch.matmul(a, b)
    from opforge.truth.rounding import coarse

    bits = 11
    return coarse(torch.matmul(coarse(a, bits), coarse(b, bits)), bits, True)


def backward_reference(
    grad_y: Tensor,
    a: Tensor,
    b: Tensor,
    kernel: int,
    tf32: bool,
    needs_a: bool,
    needs_b: bool,
) -> tuple[Tensor, Tensor]:
    """Two products."""
    nothing = no_tensor(grad_y)
    return (
        reference(grad_y, b.mT, kernel, tf32) if needs_a else nothing,
        reference(a.mT, grad_y, kernel, tf32) if needs_b else nothing,
    )


def composed_backward(
    grad_y: Tensor,
    a: Tensor,
    b: Tensor,
    kernel: int,
    tf32: bool,
    needs_a: bool,
    needs_b: bool,
) -> tuple[Tensor, Tensor]:
    """Two products by the same kernel, or if they have another dtype, by the best one."""
    product, nothing = below("matmul"), no_tensor(grad_y)
    if not takes(KERNELS[kernel], grad_y.dtype, tf32):  # a check compares with float64
        kernel, tf32 = 0, False
    return (
        product(grad_y, b.mT, kernel, tf32) if needs_a else nothing,
        product(a.mT, grad_y, kernel, tf32) if needs_b else nothing,
    )


def validate(a: Tensor, b: Tensor, kernel: int, tf32: bool) -> None:
    """The shapes fit, and the kernel takes the dtype."""
    if a.dim() != b.dim() or a.dim() not in (2, 3) or a.shape[:-2] != b.shape[:-2]:
        raise ValueError(
            "opforge.matmul: a and b must be matrices, or equally many of them, got a "
            f"{tuple(a.shape)} and b {tuple(b.shape)}; opforge.matmul broadcasts other shapes"
        )
    _check_inner(a, b)
    _check_dtypes(a, b)
    if not 0 <= kernel < len(KERNELS):
        raise ValueError(f"opforge.matmul: there is no kernel {kernel}")
    name = KERNELS[kernel]
    if tf32 and a.dtype != torch.float32:
        raise TypeError(
            f"opforge.matmul: tf32=True is for float32, but a is {a.dtype}; leave tf32 out"
        )
    if tf32 and not takes(name, a.dtype, tf32):
        raise ValueError(
            "opforge.matmul: tf32=True is for the kernels 'mma' and 'hopper', got "
            f"kernel={name!r}; pass one of them or kernel=None"
        )
    if not takes(name, a.dtype, tf32):
        hint = " (mma and hopper also take float32 with tf32=True)" if name != "wmma" else ""
        raise TypeError(
            f"opforge.matmul: kernel={name!r} takes float16 and bfloat16{hint}, but a is "
            f"{a.dtype}; pass kernel='registers' or kernel=None"
        )


def _check_inner(a: Tensor, b: Tensor) -> None:
    if a.shape[-1] != b.shape[-2]:
        hint = "; pass b.mT" if a.shape[-1] == b.shape[-1] else ""
        raise ValueError(
            "opforge.matmul: the columns of a and the rows of b must agree, got a "
            f"{tuple(a.shape)} and b {tuple(b.shape)}{hint}"
        )


def _check_dtypes(a: Tensor, b: Tensor) -> None:
    if a.dtype != b.dtype:
        raise TypeError(
            f"opforge.matmul: a is {a.dtype} but b is {b.dtype}; convert one, as in b.to(a.dtype)"
        )


def cases(make: Make) -> Iterator[tuple[Any, ...]]:
    """Every kernel at sizes around its tiles; unaligned, transposed, batched, strided, empty."""

    # TF32 is not among them: the largest float32 rounds to infinity, and small ones lose digits.
    def by(name: str | None) -> tuple[int, bool]:
        return KERNELS.index(name if takes(name, make.dtype, False) else None), False

    yield make(18, 7), make(7, 35), *by("naive")
    yield make(9, 33), make(33, 40), *by("coalesced")
    yield make(33, 40), make(40, 65), *by("tiled")
    yield make(130, 20), make(20, 136), *by("registers")
    yield make(40, 33).t(), make(9, 40).t(), *by("registers")
    yield make(72, 40), make(40, 72), *by("wmma")
    yield make(64, 72), make(72, 72), *by("mma")
    yield make(16, 66).t(), make(24, 16).t(), *by("mma")
    yield make(2, 7, 31), make(2, 31, 9), *by("mma")
    yield make(72, 72), make(72, 136), *by("hopper")
    yield make(24, 72).t(), make(40, 24).t(), *by("hopper")
    yield make(2, 9, 24), make(1, 24, 16).expand(2, 24, 16), *by("hopper")
    yield make(3, 5, 8), make(3, 16, 8).mT, *by(None)
    yield make(8, 48)[:, ::2], make(24, 64)[:, ::2], *by("tiled")
    yield make(0, 8), make(8, 16), *by("naive")
    yield make(3, 0), make(0, 16), *by("mma")
    yield make(2, 3, 8), make(2, 8, 0), *by("hopper")


def sized(make: Make, m: int, n: int, k: int | None = None) -> dict[str, Any]:
    """A product for each kernel, (m, k) by (k, n); k is n by default."""
    inner = n if k is None else k
    inputs = make(m, inner), make(inner, n)
    return {
        name: (*inputs, i, False)
        for i, name in enumerate(KERNELS)
        if name is not None and takes(name, make.dtype, False)
    }


op = Op(
    schema="matmul(Tensor a, Tensor b, int kernel, bool tf32) -> Tensor y",
    reference=reference,
    backward=Backward(
        "matmul_backward(Tensor grad_y, Tensor a, Tensor b, int kernel, bool tf32, bool needs_a, "
        "bool needs_b) -> (Tensor grad_a, Tensor grad_b)",
        backward_reference,
        composed=composed_backward,
    ),
    dtypes=FLOATS,
    validate=validate,
    cases=cases,
    operations=lambda a, b: 2 * a.numel() * b.shape[-1],
    product=lambda a, b: (a, b),
    sized=sized,
    rowwise=True,
    autocast="low",
    build=Build(archs=["9.0a"], by_dtype=["cuda"], on_demand=["units/*.cu"]),
)


def matmul(a: Tensor, b: Tensor, kernel: str | None = None, *, tf32: bool = False) -> Tensor:
    """``a @ b``, by the kernel named. Shapes broadcast as those of :func:`torch.matmul`.

    Sums are made in float32 for 16-bit inputs.

    Args:
        a: (..., m, k), or (k,) for a row.
        b: (..., k, n), or (k,) for a column.
        kernel: "naive", "coalesced", "tiled", "registers", "wmma", "mma" or "hopper". The last
            three are for float16 and bfloat16; "mma" and "hopper" are also for TF32. None takes the
            last one that the GPU and the dtype allow. On the CPU, torch's product is used.
        tf32: multiply float32 as TF32: with 10 bits of the mantissa. For the kernels "mma" and
            "hopper".
    """
    if kernel not in KERNELS:
        known = ", ".join(repr(name) for name in KERNELS)
        raise ValueError(f"opforge.matmul: kernel must be one of {known}, got {kernel!r}")
    code = KERNELS.index(kernel)
    if (a.dim(), b.dim()) == (2, 2):
        plain: Tensor = op(a, b, code, tf32)
        return plain
    for name, x in (("a", a), ("b", b)):
        if x.dim() == 0:
            raise ValueError(
                f"opforge.matmul: {name} must have at least one dimension, got a scalar; use a * b"
            )
    left = a.unsqueeze(0) if a.dim() == 1 else a
    right = b.unsqueeze(1) if b.dim() == 1 else b
    _check_inner(left, right)
    m, k, n = *left.shape[-2:], right.shape[-1]
    try:
        batch = torch.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    except RuntimeError:
        raise ValueError(
            "opforge.matmul: the dims before the last two must broadcast, got a "
            f"{tuple(a.shape)} and b {tuple(b.shape)}; check which of them are batches"
        ) from None
    if right.dim() == 2:  # its batches are more rows
        y = op(left.reshape(math.prod(batch) * m, k), right, code, tf32)
    else:
        count = math.prod(batch)
        y = op(
            left.expand(*batch, m, k).reshape(count, m, k),
            right.expand(*batch, k, n).reshape(count, k, n),
            code,
            tf32,
        )
    shape = (*batch, *(() if a.dim() == 1 else (m,)), *(() if b.dim() == 1 else (n,)))
    result: Tensor = y.reshape(shape)
    return result
