# SPDX-License-Identifier: Apache-2.0
"""Measures how long CUDA kernels take to compile: what a first call waits for, and all ops at once.

    python benchmarks/compile_times.py --cores 8 --all-cores 16 --json times.json
    python benchmarks/compile_times.py rms_norm softmax:float32

A first call compiles what one op needs for one dtype and one architecture. Every measurement starts
with an empty cache. It needs nvcc and no GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path

import torch

from opforge import discover
from opforge.build import compile
from opforge.build.parts import parts_of
from opforge.build.plan import plan, plan_all
from opforge.build.targets import CUDA
from opforge.op import Op


@contextmanager
def cores(count: int) -> Iterator[None]:
    """Let this process, and the compilers it starts, use this many cores."""
    every = os.sched_getaffinity(0)
    if count > len(every):
        raise SystemExit(f"this machine has {len(every)} cores, not {count}")
    os.sched_setaffinity(0, sorted(every)[:count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, every)


def seconds(names: list[str], arch: str, dtype: torch.dtype | None) -> float:
    """How long the ops take to build from an empty cache, for one dtype or all."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["OPFORGE_CACHE_DIR"] = folder
        started = time.perf_counter()
        compile.build([p for name in names for p in plans(discover.find(name), arch, dtype)], True)
        return time.perf_counter() - started


def plans(op: Op, arch: str, dtype: torch.dtype | None) -> list[compile.Plan]:
    """What is compiled for a call in a dtype, or for all calls."""
    if dtype is None:
        return plan_all(op, CUDA.name, arch)
    return [plan(op, CUDA.name, arch, part) for part in parts_of(op, CUDA).for_dtype(dtype)]


def first_calls(texts: list[str]) -> list[tuple[str, str]]:
    """Op and dtype of each first call to measure: ``rms_norm:float32``, or an op in bfloat16."""
    names = texts or [n for n in discover.builtin_names() if CUDA.sources(discover.find(n))]
    found = []
    for text in names:
        name, _, dtype = text.partition(":")
        dtype = dtype or "bfloat16"
        if not CUDA.sources(discover.find(name)):
            raise SystemExit(f"{name} has no CUDA kernels")
        if getattr(torch, dtype, None) not in discover.find(name).dtypes:
            raise SystemExit(f"{name} does not take dtype {dtype!r}")
        found.append((name, dtype))
    return found


def main() -> None:
    """Print the seconds of all ops and of each first call."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "first", nargs="*", metavar="OP[:DTYPE]", help="first calls to measure; default: each op's"
    )
    parser.add_argument("--arch", default="9.0")
    parser.add_argument("--cores", type=int, default=min(8, len(os.sched_getaffinity(0))))
    parser.add_argument("--all-cores", type=int, help="first build all ops together on so many")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the times there")
    options = parser.parse_args()
    calls = first_calls(options.first)
    rows: list[dict[str, object]] = []
    report = {
        "date": f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M}",
        "processor": processor(),
        "compiler": plan_all(discover.find(calls[0][0]), CUDA.name)[-1].ingredients["compiler"],
        "arch": options.arch,
        "first_calls": rows,
    }

    def keep() -> None:  # after each, so that a run that is stopped has written what it measured
        if options.json:
            options.json.write_text(json.dumps(report, indent=1) + "\n")

    if options.all_cores:
        names = [name for name, _ in first_calls([])]
        with cores(options.all_cores):
            took = seconds(names, options.arch, None)
        report["all"] = {"ops": len(names), "cores": options.all_cores, "seconds": took}
        keep()
        print(
            f"all {len(names)} ops, all dtypes, {options.all_cores} cores: {took:.1f} s", flush=True
        )
    print(f"first call on {options.cores} cores for {options.arch}, seconds", flush=True)
    with cores(options.cores):
        for name, dtype in calls:
            took = seconds([name], options.arch, getattr(torch, dtype))
            rows.append({"op": name, "dtype": dtype, "cores": options.cores, "seconds": took})
            keep()
            print(f"{name:22} {dtype:9} {took:6.1f}", flush=True)


def processor() -> str:
    """What /proc/cpuinfo calls the processor."""
    text = Path("/proc/cpuinfo").read_text()
    lines = [line for line in text.splitlines() if line.startswith("model name")]
    return lines[0].partition(": ")[2] if lines else platform.machine()


if __name__ == "__main__":
    main()
