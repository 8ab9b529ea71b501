# SPDX-License-Identifier: Apache-2.0
"""A profile: measured with Nsight Compute where that is possible, else what is known without."""

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
    """The facts of a request, where they come from, and what could not be told."""

    title: str
    origin: str  # one line: how this was found out
    calls: list[Call]
    compiled: list[Kernel]  # kernels as compiled; only without a GPU
    compiled_by: str
    notes: list[str]

    def as_json(self) -> dict[str, Any]:
        """Everything, advice and provenance included, for a file."""
        return {
            **asdict(self),
            "calls": [{**asdict(c), "advice": advise(c)} for c in self.calls],
            "opforge": opforge.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        }


def make(request: Request) -> Profile:
    """Profile a request in the best way that this machine has."""
    check_has_kernels(request.op)
    program, reason = tools.find("ncu"), why_no_gpu()
    if not reason and program is None:
        reason = f"no Nsight Compute (ncu) is found; {tools.REMEDY['ncu']}"
    if reason or program is None:
        return _unmeasured(request, reason)
    gpu = f"Nsight Compute on {torch.cuda.get_device_name()}, clocks as they are, caches cold"
    return Profile(request.title, gpu, ncu.measure(request, program), [], "", [])


def why_no_gpu() -> str:
    """Why nothing can be measured here; "" if it can."""
    if torch.version.cuda is None:
        return "this torch has no CUDA"
    return "" if torch.cuda.is_available() else "no GPU is visible"


def _unmeasured(request: Request, reason: str) -> Profile:
    known = unmeasured.look(request)
    origin = f"not measured: {reason}. What is known without:"
    compiled_by = f"compiled for {known.arch}, told by {known.source}" if known.kernels else ""
    notes = [*known.notes]
    if any(c.verdict for c in known.calls):
        notes.append(unmeasured.LEGEND)
    return Profile(request.title, origin, known.calls, known.kernels, compiled_by, notes)
