# SPDX-License-Identifier: Apache-2.0
"""Makes a profile: measured with Nsight Compute if possible, or else from code and simulator."""

from __future__ import annotations

import platform
from dataclasses import asdict, dataclass
from typing import Any

import torch

import opforge
from opforge.build import tools
from opforge.profile import ncu, unmeasured
from opforge.profile.advice import advise
from opforge.profile.facts import Call, Kernel
from opforge.profile.request import Request, check_has_kernels


@dataclass(frozen=True)
class Profile:
    """The facts for a request, their origin, and notes on what is missing."""

    title: str
    origin: str  # one line: how the facts were found
    calls: list[Call]
    compiled: list[Kernel]  # compiled kernels; only without a GPU
    compiled_by: str
    notes: list[str]

    def as_json(self) -> dict[str, Any]:
        """The profile as data for JSON, with advice and provenance."""
        return {
            **asdict(self),
            "calls": [{**asdict(c), "advice": advise(c)} for c in self.calls],
            "opforge": opforge.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        }


def make(request: Request) -> Profile:
    """Profile a request in the best way that this machine supports."""
    check_has_kernels(request.op)
    program, reason = tools.find("ncu"), why_no_gpu()
    if not reason and program is None:
        reason = f"Nsight Compute (ncu) is not installed; {tools.REMEDY['ncu']}"
    if reason or program is None:
        return _unmeasured(request, reason)
    gpu = f"Nsight Compute on {torch.cuda.get_device_name()}, clocks not fixed, caches cold"
    return Profile(request.title, gpu, ncu.measure(request, program), [], "", [])


def why_no_gpu() -> str:
    """The reason why nothing can be measured here, or ""."""
    if torch.version.cuda is None:
        return "this build of torch has no CUDA"
    return "" if torch.cuda.is_available() else "torch sees no GPU"


def _unmeasured(request: Request, reason: str) -> Profile:
    known = unmeasured.look(request)
    origin = f"not measured: {reason}. Facts from the compiled code and the simulator:"
    compiled_by = f"compiled for {known.arch}, reported by {known.source}" if known.kernels else ""
    notes = [*known.notes]
    if any(c.verdict for c in known.calls):
        notes.append(unmeasured.LEGEND)
    return Profile(request.title, origin, known.calls, known.kernels, compiled_by, notes)
