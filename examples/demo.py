# SPDX-License-Identifier: Apache-2.0
"""The tour: build some kernels, check their ops, time them beside the limit, report all of it.

Run it with `make demo`. It needs a C++ compiler; nvcc and a GPU are used where they are found.
"""

from __future__ import annotations

import time
from pathlib import Path

import torch
from rich.console import Console

from opforge import discover
from opforge.bench import runner as bench
from opforge.bench import show as times
from opforge.bench.results import Results
from opforge.build import arch, compile, toolchain
from opforge.build.plan import plan
from opforge.check import runner as check
from opforge.check import show as scores
from opforge.check.options import Options
from opforge.check.results import Report
from opforge.errors import ToolchainError
from opforge.op import Op
from opforge.report.page import page

console = Console()
REPORT = Path("report.html")
OPS = ("scale_bias_relu", "reduce_sum", "rms_norm", "swiglu")  # one of each kind


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


def prove(ops: list[Op], device: str) -> Report:
    """The record's cases, forward and backward: two of the fifty rows of `opforge check`."""
    console.rule("2. check: against float64 truth, PyTorch's own error beside it")
    options = Options((device,), only=("own-cases", "gradients"))
    report = check.check(ops, options)
    scores.on_console(report, console)
    return report


def time_them(ops: list[Op], device: str) -> Results:
    """Forward and backward beside eager PyTorch and a copy of the same bytes."""
    shape = (8192, 8192) if device == "cuda" else (1024, 4096)
    console.rule(f"3. bench: {shape[0]} x {shape[1]} on the {device}")
    options = bench.Options(device, [shape], backward=True, peers=["eager"])
    results = bench.run(ops, options)
    times.on_console(results, console)
    return results


def main() -> None:
    started = time.monotonic()
    ops = [discover.find(name) for name in OPS]
    has_cuda_kernels = build(ops)
    device = "cuda" if torch.cuda.is_available() and has_cuda_kernels else "cpu"
    report = prove(ops, device)
    results = time_them(ops, device)
    console.rule("4. report")
    REPORT.write_text(page(results, [report], "opforge demo"), encoding="utf-8")
    console.print(f"written to {REPORT.resolve()}: open it in a browser", highlight=False)
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
