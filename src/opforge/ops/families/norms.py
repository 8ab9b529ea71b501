# SPDX-License-Identifier: Apache-2.0
"""Code that layer_norm and rms_norm share: a relu, a dropout and a residual around the norm.

    h = before(x) + residual        y = after(norm(h))

``before`` and ``after`` are each a relu, a dropout, or a relu followed by a dropout.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor

from opforge.op import Make
from opforge.ops.families import philox

Where = Literal["before", "after"] | None


class Stage(enum.IntFlag):
    """The bits of ``before`` and ``after`` in the schema."""

    RELU = 1
    DROPOUT = 2


def apply_stage(v: Tensor, stage: int, seed: Tensor | None, p: float) -> Tensor:
    """Apply the relu and the dropout that ``stage`` selects, in this order."""
    if stage & Stage.RELU:
        v = torch.relu(v)
    if stage & Stage.DROPOUT:
        assert seed is not None
        v = torch.where(philox.kept(seed, v.shape, p), v * philox.scale(p), 0)
    return v


def stage_backward(grad: Tensor, v: Tensor, stage: int, seed: Tensor | None, p: float) -> Tensor:
    """The gradient of ``v``, the input of :func:`apply_stage`."""
    if stage & Stage.DROPOUT:
        assert seed is not None
        grad = torch.where(philox.kept(seed, v.shape, p), grad * philox.scale(p), 0)
    if stage & Stage.RELU:
        grad = grad.masked_fill(v <= 0, 0)
    return grad


def sum_before(
    x: Tensor, residual: Tensor | None, seed: Tensor | None, before: int, p: float
) -> Tensor:
    """The tensor that is normalised, in the dtype that kernels compute in, for statistics."""
    h = apply_stage(x.detach(), before, part(seed, 0), p)
    return wide(h if residual is None else h + residual.detach())


def through_sum(
    grad: Tensor,
    grad_h: Tensor | None,
    x: Tensor,
    residual_shape: list[int] | None,
    seed: Tensor | None,
    before: int,
    p: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """The gradients of x and residual from that of the norm's input. Empty if it equals x's."""
    if grad_h is not None and residual_shape is not None:
        grad = grad + grad_h
    if before == 0:
        return grad.to(dtype), no_tensor(x).to(dtype)
    grad_x = stage_backward(grad, wide(x), before, part(seed, 0), p)
    grad_residual = no_tensor(x) if residual_shape is None else grad
    return grad_x.to(dtype), grad_residual.to(dtype)


def part(seed: Tensor | None, i: int) -> Tensor | None:
    """The seed for the dropout of ``before`` (0) or ``after`` (1)."""
    return None if seed is None else seed[i : i + 1]


def wide_dtype(x: Tensor) -> torch.dtype:
    """The dtype that kernels compute in."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def wide(x: Tensor) -> Tensor:
    """``x`` in the dtype that kernels compute in."""
    return x.to(wide_dtype(x))


def sum_of_rows(v: Tensor) -> Tensor:
    """The sum over all dims but the last."""
    return v.reshape(math.prod(v.shape[:-1]), v.shape[-1]).sum(0)


def no_tensor(like: Tensor) -> Tensor:
    """An empty tensor, which an op returns in place of one that is not needed."""
    return like.new_empty(0)


def codes(relu: Where, dropout: Where) -> tuple[int, int]:
    """Convert ``relu=`` and ``dropout=`` of the public functions to ``before`` and ``after``."""
    for name, where in (("relu", relu), ("dropout", dropout)):
        if where not in ("before", "after", None):
            raise ValueError(f'opforge: {name} must be "before", "after" or None, got {where!r}')
    return tuple(
        Stage.RELU * (relu == place) + Stage.DROPOUT * (dropout == place)
        for place in ("before", "after")
    )  # type: ignore[return-value]


def draw_seeds(x: Tensor, dropout: Where) -> Tensor | None:
    """Two seeds from torch's generator, or None without a dropout."""
    if dropout is None:
        return None
    return torch.randint(-(2**63), 2**63 - 1, (2,), dtype=torch.int64, device=x.device)


def validate(
    name: str,
    x: Tensor,
    params: dict[str, Tensor | None],
    residual: Tensor | None,
    seed: Tensor | None,
    eps: float,
    before: int,
    after: int,
    p: float,
) -> None:
    """The shapes and dtypes of a norm's arguments match, and its options are valid."""
    if x.dim() == 0:
        raise ValueError(f"opforge.{name}: x must have at least one dimension, got a scalar")
    for what, param in params.items():
        if param is not None and param.shape != x.shape[-1:]:
            raise ValueError(
                f"opforge.{name}: {what} must have shape ({x.shape[-1]},), one value per column "
                f"of x, which has shape {tuple(x.shape)}; got {tuple(param.shape)}"
            )
    if residual is not None and residual.shape != x.shape:
        raise ValueError(
            f"opforge.{name}: residual must have the shape of x, {tuple(x.shape)}; "
            f"got {tuple(residual.shape)}"
        )
    if residual is not None and residual.dtype != x.dtype:
        raise TypeError(
            f"opforge.{name}: x is {x.dtype} but residual is {residual.dtype}; "
            "convert one, as in residual.to(x.dtype)"
        )
    if not 0 < eps < math.inf:
        raise ValueError(f"opforge.{name}: eps must be positive and finite, got {eps}")
    philox.check_probability(name, p)
    for what, code in (("before", before), ("after", after)):
        if code not in range(4):
            raise ValueError(
                f"opforge.{name}: {what} must be 0, 1 (relu), 2 (dropout) or 3 (both), got {code}"
            )
    if (before | after) & Stage.DROPOUT and (seed is None or seed.shape != (2,)):
        got = None if seed is None else tuple(seed.shape)
        raise ValueError(
            f"opforge.{name}: a dropout needs seed, an int64 tensor of shape (2,); got {got} "
            f"with x of shape {tuple(x.shape)}"
        )


def unsaved(residual: Tensor | None, before: int) -> tuple[str, ...]:
    """Do not save x if there is a residual: the backward then only needs it for a relu's mask."""
    return ("x",) if residual is not None and before in (0, Stage.DROPOUT) else ()


def cases(make: Make) -> Iterator[tuple[Tensor, Tensor | None, dict[str, Any]]]:
    """Tuples of x, residual, and the options that differ from a plain norm's."""
    seed = torch.tensor([17, 4], device=make.device)
    for shape in [(5,), (0, 4), (3, 0), (1, 3), (7, 31), (33, 96), (2, 3, 257), (3, 1100)]:
        yield make(*shape), None, {}
    yield make(16, 40)[::2], None, {"offset": 1.0}
    yield make(4, 6, 24).transpose(0, 1), make(6, 4, 24), {"save": False}
    relu, dropout = int(Stage.RELU), int(Stage.DROPOUT)
    yield make(9, 67)[:, 1:], None, {"before": relu, "after": dropout, "seed": seed, "p": 0.25}
    yield make(5, 64), make(5, 64), {"before": dropout, "seed": seed, "p": 0.5}
    both = {"before": relu | dropout, "after": relu | dropout}
    yield make(5, 50), make(5, 50), {**both, "seed": seed, "p": 0.1}
