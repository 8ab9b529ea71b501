# SPDX-License-Identifier: Apache-2.0
"""Batching rules: what vmap does with an op, derived from its record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

InDims = tuple[Any, ...]  # per argument: the batch dim, or None


def rule(pointwise: bool) -> Callable[..., tuple[Any, Any]]:
    """The rule for an op; it is called with the function that runs the op on plain tensors."""
    return _pointwise if pointwise else _loop


def _pointwise(run: Callable[..., Any], info: Any, in_dims: InDims, *args: Any) -> tuple[Any, Any]:
    """Batch dims go to the front; ranks are aligned so that broadcasting stays per sample."""
    batched = [isinstance(d, int) for d in in_dims]
    rank = max(
        a.dim() - b for a, b in zip(args, batched, strict=True) if isinstance(a, torch.Tensor)
    )
    moved = list(args)
    for i, dim in enumerate(in_dims):
        if isinstance(dim, int):
            front = args[i].movedim(dim, 0)
            ones = [1] * (rank + 1 - front.dim())
            moved[i] = front.reshape(front.shape[0], *ones, *front.shape[1:])
    return run(*moved), 0


def _loop(run: Callable[..., Any], info: Any, in_dims: InDims, *args: Any) -> tuple[Any, Any]:
    """One call per sample: right for every op."""
    pairs = list(zip(args, in_dims, strict=True))
    samples = [
        run(*[a.select(d, i) if isinstance(d, int) else a for a, d in pairs])
        for i in range(info.batch_size)
    ]
    if isinstance(samples[0], torch.Tensor):
        return torch.stack(samples), 0
    stacked = tuple(torch.stack(parts) for parts in zip(*samples, strict=True))
    return stacked, (0,) * len(stacked)
