# SPDX-License-Identifier: Apache-2.0
"""A tour of opforge: build kernels, check their ops, time them, report the results.

Run it with `make demo`. It needs a C++ compiler; it uses nvcc and a GPU if there are any.
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
from opforge.build.parts import parts_of
from opforge.build.plan import plan
from opforge.build.targets import CUDA
from opforge.check import runner as check
from opforge.check import show as scores
from opforge.check.options import Options
from opforge.check.results import Report
from opforge.errors import ToolchainError
from opforge.op import Op
from opforge.report.page import page

console = Console()
REPORT = Path("report.html")
OPS = ("scale_bias_relu", "reduce_sum", "rms_norm", "swiglu")  # one op of each kind
TIMED = "scale_bias_relu"  # each of the others takes as long again
ABOUT = """\
opforge is for fast custom operators in PyTorch. It has two parts:
- fused operators (norms, softmax, losses, gates, dropout, rope) that go over
  memory once;
- a toolkit for your own: you write the formula and the kernel, and it derives
  autograd, torch.compile support, the build, the tests and the benchmarks.
"""
STEPS = f"""\
This tour takes a minute or two:
1. build: compile the kernels of {len(OPS)} operators
2. check: compare them with float64, forward and backward
3. bench: time {TIMED} against eager PyTorch and a copy of the same bytes
4. report: write all results to {REPORT}
"""


def build(ops: list[Op]) -> bool:
    """CPU kernels always; CUDA kernels, for one architecture, if there is an nvcc."""
    console.rule("1. build")
    compile.build([plan(op, "cpu") for op in ops])
    console.print(f"CPU kernels of {', '.join(op.name for op in ops)}: ready")
    try:
        toolkit = toolchain.find_cuda()
    except ToolchainError as reason:
        console.print(f"No CUDA kernels: {reason}", highlight=False)
        return False
    has_gpu = torch.cuda.is_available()
    archs = arch.select()[-1] if has_gpu else "9.0"
    some = ops if has_gpu else ops[:1]  # without a GPU, one op shows that nvcc works
    parts = [(op, name) for op in some for name in parts_of(op, CUDA).for_dtype(torch.float32)]
    compile.build([plan(op, "cuda", archs, name) for op, name in parts])
    names = ", ".join(op.name for op in some)
    console.print(f"CUDA kernels of {names} for {archs}, by nvcc {toolkit.nvcc.version}: ready")
    return True


def prove(ops: list[Op], device: str) -> Report:
    """The record's cases, forward and backward: two of the seventy rows of `opforge check`."""
    console.rule("2. check: error against float64, compared with PyTorch's error")
    options = Options((device,), only=("own-cases", "gradients"))
    report = check.check(ops, options)
    scores.on_console(report, console)
    return report


def time_them(ops: list[Op], device: str) -> Results:
    """Forward and backward, against eager PyTorch and a copy of the same bytes."""
    shape = (8192, 8192) if device == "cuda" else (1024, 2048)
    console.rule(f"3. bench: {shape[0]} x {shape[1]} on the {device}")
    options = bench.Options(device, [shape], backward=True, peers=["eager"])
    results = bench.run(ops, options)
    times.on_console(results, console)
    return results


def main() -> None:
    started = time.monotonic()
    console.print(ABOUT, highlight=False)
    console.print(STEPS, highlight=False)
    ops = [discover.find(name) for name in OPS]
    has_cuda_kernels = build(ops)
    device = "cuda" if torch.cuda.is_available() and has_cuda_kernels else "cpu"
    report = prove(ops, device)
    results = time_them([op for op in ops if op.name == TIMED], device)
    console.rule("4. report")
    REPORT.write_text(page(results, [report], "opforge demo"), encoding="utf-8")
    console.print(f"written to {REPORT.resolve()}: open it in a browser", highlight=False)
    console.rule("done")
    if device == "cpu":
        console.print(
            "With a GPU, the same ops run as CUDA kernels, limited by the GPU's memory bandwidth. "
            "docs/benchmarks.md has the results of an H200; `opforge doctor` lists what is missing "
            "here.",
            highlight=False,
        )
    console.print(f"took {time.monotonic() - started:.0f} s", highlight=False)


if __name__ == "__main__":
    main()
