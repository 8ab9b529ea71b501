# SPDX-License-Identifier: Apache-2.0
"""Measures memory, time and error of a linear layer with its cross entropy, forward and backward.

    python benchmarks/memory.py --json memory.json                  # on a GPU, large shapes
    python benchmarks/memory.py --chunks 0 512 1024 2048 4096       # the cost of a chunk's size
    python benchmarks/memory.py --device cpu                        # a small shape, to try it out

"peak" is the peak memory of torch's allocator during a step, beyond what was allocated before. A
first step warms it up. The two resulting gradients count. "error" is the error of the weight's
gradient, compared with float64 and relative to its norm.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import opforge
from opforge.bench.machine import provenance

SHAPES = {"cuda": ["8192x4096x128256", "16384x2048x128256"], "cpu": ["256x64x1024"]}
METHOD = "median of single steps between two events; peak of the allocator in a step of its own"

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


def eager(x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    """Computes all logits at once, and their cross entropy."""
    return functional.cross_entropy(functional.linear(x, weight), target)


def liger() -> Loss:
    """Liger-Kernel's loss; raises ImportError if it is not installed."""
    from liger_kernel.transformers.fused_linear_cross_entropy import (
        LigerFusedLinearCrossEntropyLoss,
    )

    loss = LigerFusedLinearCrossEntropyLoss()
    return lambda x, weight, target: loss(weight, x, target)


def implementations(chunks: list[int]) -> Iterator[tuple[str, Callable[[], Loss]]]:
    """Names, and how to get the function, which may fail."""
    for low, chunk in itertools.product((False, True), chunks):
        name = "opforge" + (", low_memory" if low else "") + (f", chunk {chunk}" if chunk else "")
        ours = partial(opforge.linear_cross_entropy, low_memory=low, chunk=chunk)
        yield name, lambda ours=ours: ours
    yield "liger", liger
    yield "eager", lambda: eager


def peak_bytes(step: Callable[[], Any], device: str) -> int:
    """The peak memory of the allocator during a step, beyond what is allocated now."""
    if device == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with torch.profiler.profile(profile_memory=True) as profile:
        step()
    # The CPU's allocator keeps no peak, but the profiler sees each allocation and each release.
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    sizes = [e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())]
    return max(itertools.accumulate(sizes), default=0)


def milliseconds(step: Callable[[], Any], device: str, repeats: int) -> float:
    times = []
    for _ in range(repeats):
        if device == "cuda":
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            step()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end))
        else:
            began = time.perf_counter()
            step()
            times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times)


def true_gradient(x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    """The weight's gradient in float64, computed 256 rows at a time."""
    wide, total = weight.double(), torch.zeros_like(weight, dtype=torch.float64)
    for part, labels in zip(x.double().split(256), target.split(256), strict=True):
        d = functional.linear(part, wide).softmax(-1)
        d[torch.arange(len(labels), device=d.device), labels] -= 1
        total.addmm_(d.t(), part)
    return total.div_(len(x))


def error_of(found: Tensor, expected: Tensor) -> float:
    """The relative error, computed in slabs: a whole difference in float64 would be large."""
    pairs = zip(found.split(4096), expected.split(4096), strict=True)
    off = sum(float((f.double() - e).square().sum()) for f, e in pairs)
    return (off**0.5) / float(expected.norm())


def measure(get: Callable[[], Loss], inputs: list[Tensor], expected: Tensor, options: Any) -> Any:
    loss = get()
    x, weight, target = inputs

    def step() -> tuple[Tensor, ...]:
        return torch.autograd.grad(loss(x, weight, target), (x, weight))

    error = error_of(step()[1], expected)  # warms up, too
    return {
        "peak_bytes": peak_bytes(step, options.device),
        "ms": milliseconds(step, options.device, options.repeats),
        "error": error,
    }


def measure_shape(shape: str, options: Any) -> Iterator[dict[str, Any]]:
    rows, features, classes = map(int, shape.split("x"))
    device, dtype = options.device, getattr(torch, options.dtype)
    torch.manual_seed(0)
    x = torch.randn(rows, features, device=device).to(dtype).requires_grad_()
    weight = torch.randn(classes, features, device=device).div_(features**0.5).to(dtype)
    weight.requires_grad_()
    target = torch.randint(0, classes, (rows,), device=device)
    with torch.no_grad():
        expected = true_gradient(x, weight, target)
    print(f"\n{shape} (rows x features x classes), {options.dtype}")
    print(f"{'implementation':<32} {'peak, MiB':>10} {'ms':>9} {'error':>9}")
    for name, get in implementations(options.chunks):
        row: dict[str, Any] = {"shape": shape, "dtype": options.dtype, "implementation": name}
        try:
            row.update(measure(get, [x, weight, target], expected, options))
        except Exception as error:  # not installed, out of memory, not for this device
            row["failed"] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            print(f"{name:<32} {row['failed'][:80]}", flush=True)
        else:
            peak = row["peak_bytes"] / 2**20
            print(f"{name:<32} {peak:>10.1f} {row['ms']:>9.2f} {row['error']:>9.1e}", flush=True)
        if device == "cuda":
            torch.cuda.empty_cache()
        yield row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--shapes", nargs="*", help="such as 8192x4096x128256")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--chunks", nargs="*", type=int, default=[0], help="0: chosen by opforge")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--json", type=Path, help="write all results there")
    parser.add_argument("--commit", help="the measured commit, if git cannot tell")
    options = parser.parse_args()
    rows = [
        row
        for shape in options.shapes or SHAPES[options.device]
        for row in measure_shape(shape, options)
    ]
    if options.json:
        run = provenance(options.device, METHOD, options.commit)
        lines = ",\n".join(f" {json.dumps(row)}" for row in rows)
        options.json.write_text(f'{{"run": {json.dumps(run)},\n"rows": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
