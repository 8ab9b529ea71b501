# SPDX-License-Identifier: Apache-2.0
"""Builds and loads the simulator's runtime library, and controls it through ctypes."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from opforge import settings
from opforge.build import cache, compile, targets
from opforge.build.plan import Plan, plan, plan_simulator
from opforge.errors import BuildError, KernelUnavailable
from opforge.op import Op
from opforge.registration.register import BELOW
from opforge.truth.coverage import recorder

_lock = threading.RLock()
# (namespace, op, target) -> its definitions, which live as long as the process, and its library
_loaded: dict[tuple[str, str, str], tuple[torch.library.Library, Path]] = {}
_failed: dict[str, BuildError] = {}  # by key of the plan


@dataclass(frozen=True)
class Device:
    """The simulated GPU: the properties that kernels can query, and the limits of a launch."""

    name: str = "H200"
    multiprocessors: int = 132
    threads_per_block: int = 1024
    shared_per_block: int = 49152
    most_shared_per_block: int = 232448  # with cudaFuncSetAttribute, which opforge::launch does
    blocks_per_cluster: int = 8
    capability_major: int = 9  # the compute capability, which decides between kernels
    capability_minor: int = 0


H200 = Device()
A100 = Device("A100", 108, most_shared_per_block=166912, capability_major=8)


@dataclass(frozen=True)
class Traffic:
    """The memory traffic of one kernel launch. It is a model of traffic, not of time.

    ``distinct`` bytes are whole 32-byte sectors, each counted once per launch: the traffic with
    perfect caches. ``sectors`` are summed over all requests, where a request is one access by a
    warp. ``fewest`` is the number that the same bytes would need if they were contiguous.
    """

    kernel: str
    blocks: int
    threads: int
    bytes_read: int
    distinct_read: int
    read_requests: int
    read_sectors: int
    read_fewest: int
    bytes_written: int
    distinct_written: int
    write_requests: int
    write_sectors: int
    write_fewest: int
    shared_requests: int
    shared_passes: int
    shared_fewest: int
    barriers: int


@functools.cache
def library() -> ctypes.CDLL:
    """The runtime library. Its symbols are visible to ops that are loaded after it."""
    found = ctypes.CDLL(str(_built(plan_simulator()).path), mode=ctypes.RTLD_GLOBAL)
    found.opforge_sim_set.argtypes = [ctypes.c_char_p, ctypes.c_int64]
    found.opforge_sim_set.restype = ctypes.c_bool
    for function in (found.opforge_sim_take_warnings, found.opforge_sim_take_traffic):
        function.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
        function.restype = ctypes.c_size_t
    return found


def configure(device: Device, **options: int) -> None:
    """Simulate ``device`` from now on, with these options."""
    values = {**asdict(device), **options}
    del values["name"]
    for name, value in values.items():
        if not library().opforge_sim_set(name.encode(), value):
            raise ValueError(f"the simulator has no setting {name!r}")


def take_warnings() -> list[str]:
    """The warnings about kernels that ran since the last call."""
    return [w for w in _take(library().opforge_sim_take_warnings).split("\0") if w]


def take_traffic() -> list[Traffic]:
    """The traffic of every launch since the last call."""
    launches = []
    for line in _take(library().opforge_sim_take_traffic).splitlines():
        name, *numbers = line.split("\t")
        launches.append(Traffic(name, *map(int, numbers)))
    return launches


def _take(function: Any) -> str:
    size = function(None, 0)
    buffer = ctypes.create_string_buffer(max(size, 1))
    length = function(buffer, size)
    return buffer.raw[:length].decode(errors="replace")


def _built(planned: Plan) -> cache.Library:
    """The library of a plan, from the cache or newly built."""
    library = cache.lookup(planned.entry)
    if library is None and not settings.jit_enabled():
        raise KernelUnavailable(
            f"{planned.op} is not built for the simulator, and OPFORGE_JIT=0 forbids it; "
            "unset OPFORGE_JIT, or run `opforge sim` once without it"
        )
    return library or compile.build([planned])[0]


def is_loaded() -> bool:
    """Whether this process has loaded the simulator."""
    return library.cache_info().currsize > 0


def build(ops: list[Op], target: str) -> None:
    """Compile everything that ``ensure`` will need, in parallel."""
    plans = [plan(op, target) for op in ops if op.composed is None]
    compile.build([plan_simulator(), *plans])


def ensure(op: Op, target: str) -> str:
    """Build and load ``op`` for a target of the check. Returns its namespace there."""
    goal = targets.find(target)
    known = (op.namespace, op.name, target)
    where = goal.namespace(op)
    with _lock:
        if known in _loaded:
            return where
        planned = plan(op, target)  # before the runtime: it may say that the op is not simulated
        if planned.key in _failed:  # the same source would fail again
            raise _failed[planned.key]
        if goal.simulated:
            library()
        try:
            made = _built(planned)
        except BuildError as error:
            _failed[planned.key] = error
            raise
        definitions = torch.library.Library(where, "FRAGMENT")
        for schema in op.kernels:
            definitions.define(schema.text)
            definitions.define(schema.under(f"{schema.name}.{BELOW}"))
        with recorder.watching(made) if goal.covers else contextlib.nullcontext():
            torch.ops.load_library(str(made.path))
        _loaded[known] = (definitions, made.path)
    return where


def loaded_path(op: Op, target: str) -> Path:
    """The path of the library that ``ensure`` loaded."""
    return _loaded[op.namespace, op.name, target][1]


def under_asan() -> bool:
    """Whether this process was started with AddressSanitizer."""
    return any("asan" in os.path.basename(p) for p in os.environ.get("LD_PRELOAD", "").split(":"))
