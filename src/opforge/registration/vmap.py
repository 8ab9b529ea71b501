# SPDX-License-Identifier: Apache-2.0
"""The batching rules of torch.vmap, derived from an op's record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

InDims = tuple[Any, ...]  # for each argument: the batch dim, or None


def rule(pointwise: bool) -> Callable[..., tuple[Any, Any]]:
    """The batching rule of an op. Its first argument runs the op on plain tensors."""
    return _pointwise if pointwise else _loop


def _pointwise(run: Callable[..., Any], info: Any, in_dims: InDims, *args: Any) -> tuple[Any, Any]:
    """Move batch dims to the front, and align ranks so that samples broadcast as before."""
    slots = [i for i, a in enumerate(args) if isinstance(a, torch.Tensor)]
    fronts = [
        args[i].movedim(in_dims[i], 0) if isinstance(in_dims[i], int) else args[i].unsqueeze(0)
        for i in slots
    ]
    rank = max(t.dim() for t in fronts)
    aligned = [t.reshape(t.shape[0], *[1] * (rank - t.dim()), *t.shape[1:]) for t in fronts]
    moved = list(args)
    for i, tensor in zip(slots, torch.broadcast_tensors(*aligned), strict=True):
        moved[i] = tensor  # a backward kernel does not broadcast
    return run(*moved), 0


def _loop(run: Callable[..., Any], info: Any, in_dims: InDims, *args: Any) -> tuple[Any, Any]:
    """Call the op once per sample, which is right for every op."""
    if info.batch_size == 0:
        raise ValueError("opforge: vmap over an empty batch is not supported for this op")
    pairs = list(zip(args, in_dims, strict=True))
    samples = [
        run(*[a.select(d, i) if isinstance(d, int) else a for a, d in pairs])
        for i in range(info.batch_size)
    ]
    if isinstance(samples[0], torch.Tensor):
        return torch.stack(samples), 0
    stacked = tuple(torch.stack(parts) for parts in zip(*samples, strict=True))
    return stacked, (0,) * len(stacked)
