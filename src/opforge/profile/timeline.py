# SPDX-License-Identifier: Apache-2.0
"""A timeline of an op: the command for Nsight Systems, or PyTorch's own trace in a file."""

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

_CALLS = 5  # of each, to see how they follow each other


def timeline(wanted: request.Request, file: Path) -> str:
    """Make it, or say how; returns what to tell the user."""
    gpu = not why_no_gpu()
    program = tools.find("nsys") if gpu else None
    if program is not None:
        return "for a timeline in Nsight Systems, run:\n" + command(program, wanted, file)
    if not file.parent.is_dir():
        raise ProfileError(f"{file.parent} is no folder; --timeline writes a file into one")
    trace(wanted, "cuda" if gpu else "cpu", file)
    return f"{file}: open it at https://ui.perfetto.dev or in chrome://tracing"


def command(program: str, wanted: request.Request, file: Path) -> str:
    """What a user types to have Nsight Systems trace the op."""
    words = [
        program,
        "profile",
        *("--trace", "cuda,nvtx"),
        *("--capture-range", "cudaProfilerApi"),  # not the imports and the warm-up
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
