# SPDX-License-Identifier: Apache-2.0
"""bias_dropout_residual: y = residual + dropout(x + bias), the end of a transformer block."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from opforge.op import Backward, Build, Make, Op
from opforge.ops.families import philox

NAME = "bias_dropout_residual"


def reference(x: Tensor, bias: Tensor | None, residual: Tensor, seed: Tensor, p: float) -> Tensor:
    """The formula, with the same mask as ``opforge.dropout``."""
    inner = x if bias is None else x + bias
    return residual + torch.where(philox.kept(seed, x.shape, p), inner * philox.scale(p), 0)


def backward_reference(
    grad_y: Tensor, seed: Tensor, p: float, needs_bias: bool
) -> tuple[Tensor, Tensor]:
    """Recompute the mask. The gradient of bias is summed over the rows."""
    passed = torch.where(philox.kept(seed, grad_y.shape, p), grad_y * philox.scale(p), 0)
    if not needs_bias:
        return passed, grad_y.new_empty(0)
    return passed, passed.reshape(math.prod(grad_y.shape[:-1]), grad_y.shape[-1]).sum(0)


def validate(x: Tensor, bias: Tensor | None, residual: Tensor, seed: Tensor, p: float) -> None:
    """residual is like x, bias one value per column of x; p is a probability, seed one number."""
    if x.dim() == 0:
        raise ValueError(f"opforge.{NAME}: x must have at least one dimension, got a scalar")
    if residual.shape != x.shape:
        raise ValueError(
            f"opforge.{NAME}: residual must have the shape of x, {tuple(x.shape)}; "
            f"got {tuple(residual.shape)}"
        )
    if bias is not None and (bias.dim() != 1 or bias.shape[0] != x.shape[-1]):
        raise ValueError(
            f"opforge.{NAME}: bias must have shape ({x.shape[-1]},), one value per column of x, "
            f"which has shape {tuple(x.shape)}; got {tuple(bias.shape)}"
        )
    for name, other in (("bias", bias), ("residual", residual)):
        if other is not None and other.dtype != x.dtype:
            raise TypeError(
                f"opforge.{NAME}: x is {x.dtype} but {name} is {other.dtype}; "
                f"convert one, as in {name}.to(x.dtype)"
            )
    philox.check_probability(NAME, p)
    philox.check_seed(NAME, seed, x)


def cases(make: Make) -> Iterator[tuple[Any, ...]]:
    """Columns around the vector width, many rows, empty, strided, with and without bias."""
    seed = torch.tensor([17], device=make.device)
    for shape in [(5,), (0, 4), (3, 0), (1, 1), (7, 31), (64, 33), (2, 3, 1025), (300, 8)]:
        yield make(*shape), make(shape[-1]), make(*shape), seed, 0.5
    yield make(9, 72), None, make(9, 72), seed, 0.25
    yield make(40, 24).t(), make(40), make(24, 40), seed, 0.1
    yield make(33, 66)[:, 1:], make(130)[::2], make(33, 65), seed, 0.9
    yield make(16, 32)[::2], make(32), make(16, 32)[1::2], seed, 0.0
    yield make(16, 32), make(32), make(16, 32), seed, 1.0


op = Op(
    schema=f"{NAME}(Tensor x, Tensor? bias, Tensor residual, Tensor seed, float p) -> Tensor y",
    reference=reference,
    backward=Backward(
        f"{NAME}_backward(Tensor grad_y, Tensor seed, float p, bool needs_bias) "
        "-> (Tensor grad_x, Tensor grad_bias)",
        backward_reference,
        shared={"residual": "grad_y"},
    ),
    own_dtypes={"seed": (torch.int64,)},
    validate=validate,
    cases=cases,
    operations=lambda x, bias: (3 if bias is None else 4) * x.numel(),
    sized=lambda make, *shape: (
        make(*shape),
        make(shape[-1]),
        make(*shape),
        torch.tensor([17], device=make.device),
        0.1,
    ),
    autocast="promote",
    build=Build(by_dtype=["cuda"]),
)


def bias_dropout_residual(
    x: Tensor, bias: Tensor | None, residual: Tensor, p: float = 0.1, training: bool = True
) -> Tensor:
    """``residual + dropout(x + bias, p)`` in one pass.

    ``bias`` has one value per element of the last dim of ``x``, or is None. The mask and the
    rounding of ``p`` are those of :func:`opforge.dropout`. Without ``training``, nothing is
    dropped.
    """
    philox.check_probability(NAME, p)
    if not training or p == 0:
        # With p = 0 the seed does not matter.
        seed, p = x.new_empty(1, dtype=torch.int64), 0.0
    else:
        seed = philox.draw_seed(x.device)
    y: Tensor = op(x, bias, residual, seed, p)
    return y
