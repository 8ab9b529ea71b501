# SPDX-License-Identifier: Apache-2.0
"""Overrides of the CUDA kernels' launch configuration, for experiments."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from opforge import discover
from opforge.build import load
from opforge.build.targets import CUDA
from opforge.op import Op
from opforge.sim import runtime, simulation


@contextlib.contextmanager
def launch_config(
    op: str | Op | Callable[..., Any],
    *,
    block: int | None = None,
    rows: int | None = None,
    vec: int | None = None,
) -> Iterator[None]:
    """A context in which ``op``'s CUDA kernels use another launch configuration.

    Args:
        op: a built-in op's name or function, or an :class:`Op`.
        block: threads per block: a multiple of 32, within the device's limit.
        rows: rows per block, for the ops that sum over rows.
        vec: elements per memory access: 1 turns 16-byte vectors off.

    It applies to the whole process, including backward passes. A kernel ignores parameters that
    it does not use.
    """
    record = discover.record_of(op)
    active = simulation.current()
    if active is not None:
        limit = active.device.threads_per_block
    elif torch.cuda.is_available():
        properties: Any = torch.cuda.get_device_properties(torch.cuda.current_device())
        limit = properties.max_threads_per_block
    else:
        raise RuntimeError(
            "launch_config changes how CUDA kernels are launched, so it needs a CUDA GPU or the "
            "simulator (with opforge.sim.active(): ...)"
        )
    if block is not None and (block % 32 or not 32 <= block <= limit):
        raise ValueError(
            f"block={block} must be a multiple of 32 from 32 to {limit} on this device"
        )
    if block is not None and block & (block - 1):
        raise ValueError(f"block={block} must be a power of two, because sums add pairs of threads")
    if rows is not None and rows < 1:
        raise ValueError(f"rows={rows} must be at least 1")
    if vec is not None and vec != 1:
        raise ValueError(f"vec={vec} must be 1 (one element per access) or None (16-byte vectors)")
    tune: Callable[[int, int, int], Any]
    if active is not None:
        runtime.ensure(record, active.target)
        library = ctypes.CDLL(str(runtime.loaded_path(record, active.target)))
        tune = library.opforge_set_tuning
    else:
        tune = functools.partial(load.tune, record, CUDA.name)
    try:
        tune(block or 0, rows or 0, vec or 0)
        yield
    finally:
        tune(0, 0, 0)
