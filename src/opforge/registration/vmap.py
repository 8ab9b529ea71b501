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
    slots = [i for i, a in enumerate(args) if isinstance(a, torch.Tensor)]
    fronts = [
        args[i].movedim(in_dims[i], 0) if isinstance(in_dims[i], int) else args[i].unsqueeze(0)
        for i in slots
    ]
    rank = max(t.dim() for t in fronts)
    aligned = [t.reshape(t.shape[0], *[1] * (rank - t.dim()), *t.shape[1:]) for t in fronts]
    moved = list(args)
    for i, tensor in zip(slots, torch.broadcast_tensors(*aligned), strict=True):
        moved[i] = tensor  # a backward's kernel does not broadcast by itself
    return run(*moved), 0


def _loop(run: Callable[..., Any], info: Any, in_dims: InDims, *args: Any) -> tuple[Any, Any]:
    """One call per sample: right for every op."""
    if info.batch_size == 0:
        raise ValueError("opforge: vmap over a batch of size 0 is not supported for this op")
    pairs = list(zip(args, in_dims, strict=True))
    samples = [
        run(*[a.select(d, i) if isinstance(d, int) else a for a, d in pairs])
        for i in range(info.batch_size)
    ]
    if isinstance(samples[0], torch.Tensor):
        return torch.stack(samples), 0
    stacked = tuple(torch.stack(parts) for parts in zip(*samples, strict=True))
    return stacked, (0,) * len(stacked)
