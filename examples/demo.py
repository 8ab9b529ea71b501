# SPDX-License-Identifier: Apache-2.0
"""The tour: build the kernels, check every op against its reference, time it against eager PyTorch.

Run it with `make demo`. It needs a C++ compiler; nvcc and a GPU are used where they are found.
"""

from __future__ import annotations

import statistics
import time

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from opforge import discover
from opforge.build import arch, compile, toolchain
from opforge.build.plan import plan
from opforge.check import runner, show
from opforge.errors import ToolchainError
from opforge.op import Make, Op

console = Console()
DTYPES = (torch.float32, torch.bfloat16)
SHAPE = (2048, 4096)


def build(ops: list[Op]) -> bool:
    """CPU kernels always; CUDA kernels, for one architecture, where there is an nvcc."""
    console.rule("1. build")
    compile.build([plan(op, "cpu") for op in ops])
    console.print(f"CPU kernels of {', '.join(op.name for op in ops)}: ready")
    try:
        toolkit = toolchain.find_cuda()
    except ToolchainError as reason:
        console.print(f"CUDA kernels are left out: {reason}", highlight=False)
        return False
    archs = arch.select()[-1] if torch.cuda.is_available() else "9.0"
    compile.build([plan(op, "cuda", archs) for op in ops])
    console.print(f"CUDA kernels for {archs}, by nvcc {toolkit.nvcc.version}: ready")
    return True


def check(ops: list[Op], device: str) -> None:
    """The record's cases, forward and backward: two of the fifty rows of `opforge check`."""
    console.rule("2. check: against float64 truth, PyTorch's own error beside it")
    options = runner.Options((device,), only=("own-cases", "gradients"))
    show.on_console(runner.check(ops, options), console)


def speed(ops: list[Op], device: str) -> None:
    """Forward and backward on tensors beyond the caches, the two taking turns."""
    console.rule(f"3. speed: {SHAPE[0]} x {SHAPE[1]} on the {device}, forward + backward, ms")
    table = Table("op", "dtype", "eager PyTorch", "opforge", "faster by", box=None)
    make = {
        "vector_add": lambda m: (m(*SHAPE), m(*SHAPE)),
        "relu": lambda m: (m(*SHAPE),),
        "scale_bias_relu": lambda m: (m(*SHAPE), m(SHAPE[1]), 0.5),
        "reduce_sum": lambda m: (m(*SHAPE), [0], False),
    }
    jobs = [(op, dtype) for op in ops if op.name in make for dtype in DTYPES]
    for op, dtype in track(jobs, "timing", console=console, transient=True):
        case = make[op.name](Make(dtype, device, requires_grad=True))
        times: dict[str, list[float]] = {"eager": [], "opforge": []}
        for _ in range(8):
            for name, function in (("eager", op.reference), ("opforge", op)):
                times[name].append(one_pass(function, case, device))
        eager, ours = (statistics.median(times[name][2:]) for name in ("eager", "opforge"))
        row = [f"{eager * 1e3:.2f}", f"{ours * 1e3:.2f}", f"{eager / ours:.2f}x"]
        table.add_row(op.name, str(dtype).removeprefix("torch."), *row)
    console.print(table)


def one_pass(function, case, device: str) -> float:
    for value in case:
        if isinstance(value, torch.Tensor):
            value.grad = None
    started = time.perf_counter()
    output = function(*case)
    output.backward(torch.ones_like(output))
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def main() -> None:
    started = time.monotonic()
    ops = [discover.find(name) for name in discover.builtin_names()]
    has_cuda_kernels = build(ops)
    device = "cuda" if torch.cuda.is_available() and has_cuda_kernels else "cpu"
    check(ops, device)
    speed(ops, device)
    console.rule("done")
    if device == "cpu":
        console.print(
            "A GPU would add: the same ops as CUDA kernels at the speed of the GPU's memory. "
            "docs/benchmarks.md has what an H200 reaches, `opforge doctor` what is missing here.",
            highlight=False,
        )
    console.print(f"took {time.monotonic() - started:.0f} s", highlight=False)


if __name__ == "__main__":
    main()
