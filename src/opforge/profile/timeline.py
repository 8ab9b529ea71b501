# SPDX-License-Identifier: Apache-2.0
"""Timelines of an op: the command for Nsight Systems, or a trace file of PyTorch's profiler."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity

from opforge.build import tools
from opforge.errors import ProfileError
from opforge.profile import child, request
from opforge.profile.nvtx import nvtx
from opforge.profile.report import why_no_gpu

_CALLS = 5  # calls of each kind, to see how they follow each other


def timeline(wanted: request.Request, file: Path) -> str:
    """Write a trace, or say how to make a timeline. Returns the text for the user."""
    gpu = not why_no_gpu()
    program = tools.find("nsys") if gpu else None
    if program is not None:
        return "for a timeline in Nsight Systems, run:\n" + command(program, wanted, file)
    if not file.parent.is_dir():
        raise ProfileError(f"{file.parent} is not a folder; --timeline writes a file into it")
    trace(wanted, "cuda" if gpu else "cpu", file)
    return f"{file}: open it at https://ui.perfetto.dev or in chrome://tracing"


def command(program: str, wanted: request.Request, file: Path) -> str:
    """The command that traces the op with Nsight Systems."""
    words = [
        program,
        "profile",
        *("--trace", "cuda,nvtx"),
        *("--capture-range", "cudaProfilerApi"),  # without the imports and the warm-up
        *("-o", str(file)),
        *(sys.executable, "-m", child.__name__, *wanted.words),
    ]
    return shlex.join(words)


def trace(wanted: request.Request, device: str, file: Path) -> None:
    """Write a Chrome trace of a few calls, with a range for each."""
    runs = request.runs(wanted, device)
    activities = [ProfilerActivity.CPU]
    activities += [ProfilerActivity.CUDA] if device == "cuda" else []
    with torch.profiler.profile(activities=activities) as profiler, nvtx():
        for run in runs:
            for _ in range(_CALLS):
                run.call()
        if device == "cuda":
            torch.cuda.synchronize()
    profiler.export_chrome_trace(str(file))
