# SPDX-License-Identifier: Apache-2.0
"""Code that softmax and log_softmax share: their input v = x * scale + mask.

With ``causal``, the last two dims are queries and keys, and v is -inf where a key comes after the
query. Such elements are constants without a gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from opforge.op import Make

SCHEMA = "(Tensor x, Tensor? mask, float scale, bool causal) -> Tensor y"
BACKWARD_SCHEMA = "(Tensor grad_y, Tensor y, float scale, bool causal) -> Tensor grad_x"
_INFINITY = float("inf")


def values(x: Tensor, mask: Tensor | None, scale: float, causal: bool) -> Tensor:
    """``x * scale + mask``, with -inf where a key is hidden."""
    if causal:  # twice, so that hidden elements have the gradient 0 even if scale is NaN
        x = x.masked_fill(hidden(x), 0)
    v = x if scale == 1 else x * scale
    if mask is not None:
        v = (v + mask.detach()).to(x.dtype)
    return v.masked_fill(hidden(x), -_INFINITY) if causal else v


def hidden(x: Tensor) -> Tensor:
    """The mask of keys that come after their query, both counted from the end."""
    queries, keys = x.shape[-2:]
    return torch.ones(queries, keys, dtype=torch.bool, device=x.device).triu(keys - queries + 1)


def covered(v: Tensor) -> Tensor:
    """The rows in which all elements are -inf."""
    return (v == -_INFINITY).all(-1, keepdim=True)


def in_full(compute: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wrap a backward to compute in float32 or float64 and round once."""

    def run(grad_y: Tensor, y: Tensor, scale: float, causal: bool) -> Tensor:
        wide = torch.promote_types(y.dtype, torch.float32)
        grad, result = grad_y.to(wide), y.to(wide)
        if causal:
            grad = grad.masked_fill(hidden(y), 0)
        grad = scale * compute(grad, result)
        return (grad.masked_fill(hidden(y), 0) if causal else grad).to(y.dtype)

    return run


def validate(op: str, x: Tensor, mask: Tensor | None, causal: bool) -> None:
    """x has at least one dim, with causal two, and the mask broadcasts to x."""
    if x.dim() == 0:
        raise ValueError(f"opforge.{op}: x must have at least one dimension, got a scalar")
    if causal and x.dim() < 2:
        raise ValueError(
            f"opforge.{op}: with causal=True the last two dims of x are queries and keys; "
            f"x has shape {tuple(x.shape)}"
        )
    if mask is None:
        return
    fits = mask.dim() <= x.dim() and all(
        n in (1, m) for n, m in zip(reversed(mask.shape), reversed(x.shape), strict=False)
    )
    if not fits:
        raise ValueError(
            f"opforge.{op}: mask must broadcast to the shape of x, {tuple(x.shape)}; "
            f"got {tuple(mask.shape)}"
        )


def check_mask(op: str, mask: Tensor | None) -> None:
    """Raise for a bool mask, or one that requires a gradient. The public functions call this."""
    if mask is None:
        return
    if mask.dtype == torch.bool:
        raise TypeError(
            f"opforge.{op}: mask is added to x, so it cannot be bool; if hide is "
            'True for elements to leave out, give torch.where(hide, float("-inf"), 0.0)'
        )
    if mask.requires_grad and torch.is_grad_enabled():
        raise ValueError(
            f"opforge.{op}: mask gets no gradient here, but it requires one; add it to x yourself, "
            "or give mask.detach()"
        )


def cases(make: Make) -> Iterator[tuple[Any, ...]]:
    """Rows around the vector width, long, empty and strided; scales, masks and causal.

    Cases with -inf in the result are too large for gradcheck, which would subtract infinities.
    """
    for shape in [(5,), (0, 4), (3, 0), (4, 1), (7, 31), (33, 96), (2, 3, 257), (3, 1100)]:
        yield make(*shape), None, 1.0, False
    yield make(16, 40)[::2], None, 0.5, False
    yield make(9, 67)[:, 1:], None, -1.5, False
    yield make(4, 6, 24).transpose(0, 1), make(6, 4, 24), 1.0, False
    hide = torch.arange(40, device=make.device) % 3 == 1
    yield make(2, 3, 5, 40), make(2, 1, 5, 40).masked_fill(hide, -_INFINITY), 0.125, False
    yield make(3, 6, 33), make(6, 1).float(), 1.0, False
    yield make(5, 64), make(64).float(), 0.75, True
    yield make(2, 7, 50), None, 0.25, True
    yield make(3, 9, 4), None, 1.0, True
    yield make(40, 24).t(), make(40, 24).t(), 1.0, True


def sized(make: Any, *shape: int) -> dict[str, tuple[Any, ...]]:
    """Plain rows, and the scores of attention with a mask that all heads share."""
    rows, cols = math.prod(shape[:-1]), shape[-1]
    queries = min(rows, cols)
    queries = queries if rows % queries == 0 else math.gcd(rows, cols)
    return {
        "plain": (make(*shape), None, 1.0, False),
        "masked": (make(rows // queries, queries, cols), make(queries, cols), 0.125, False),
    }


def only_plain(apply: Callable[[Tensor], Tensor], name: str) -> Callable[..., Tensor]:
    """Wrap a peer that supports neither mask nor scale."""

    def run(x: Tensor, mask: Tensor | None, scale: float, causal: bool) -> Tensor:
        if mask is not None or scale != 1 or causal:
            raise NotImplementedError(f"{name} has no mask, scale or causal")
        return apply(x)

    return run
