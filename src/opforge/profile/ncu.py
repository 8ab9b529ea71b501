# SPDX-License-Identifier: Apache-2.0
"""Runs a child process under Nsight Compute and sorts its launches by the call they belong to."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from opforge.build import load
from opforge.build.targets import CUDA
from opforge.errors import KernelUnavailable, ProfileError, ToolchainError
from opforge.profile import child, metrics, raw
from opforge.profile.facts import Call
from opforge.profile.request import Request

_SECONDS = 580  # limit for the child, because each kernel is replayed dozens of times
PERMISSION = (
    "Nsight Compute may not read the GPU's performance counters (ERR_NVGPUCTRPERM): the driver "
    "allows it only for administrators. Run the command as root (sudo -E), or load NVIDIA's "
    "kernel module with NVreg_RestrictProfilingToAdminUsers=0 (an options line in "
    "/etc/modprobe.d, then a restart). Start a container with --cap-add=SYS_ADMIN"
)


def measure(request: Request, program: str) -> list[Call]:
    """Measure all calls of a request on the current GPU."""
    try:
        # Built here and not in the child, so that progress is visible.
        load.find(request.op, CUDA.name)
    except (ToolchainError, KernelUnavailable) as error:
        raise ProfileError(f"{request.op.name} cannot run on the GPU: {error}") from None
    with tempfile.TemporaryDirectory(prefix="opforge-profile-") as folder:
        log, facts = Path(folder) / "ncu.csv", Path(folder) / "facts.json"
        command = _command(program, request, log, facts)
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            raise ProfileError(
                f"Nsight Compute took more than {_SECONDS} s; profile a smaller shape"
            ) from None
        printed = log.read_text(errors="replace") if log.exists() else ""
        said = json.loads(facts.read_text()) if facts.exists() else {}
        check(printed + done.stdout, done.stderr, said)
    return sort(raw.parse(printed), said["calls"])


def _command(program: str, request: Request, log: Path, facts: Path) -> list[str]:
    names = metrics.wanted(torch.cuda.get_device_capability())
    return [
        program,
        # Clocks are not fixed, so that the profile matches normal runs. A fixed clock may also
        # outlive a profiler that is killed.
        *("--clock-control", "none"),
        *("--profile-from-start", "off"),
        *("--csv", "--page", "raw", "--print-units", "base"),
        *("--metrics", ",".join(names)),
        *("--log-file", str(log)),
        *(sys.executable, "-m", child.__name__, *request.words, "--facts", str(facts)),
    ]


def check(printed: str, stderr: str, said: dict[str, Any]) -> None:
    """Raise ProfileError for a fault of the op, of ncu or of the driver."""
    if "ERR_NVGPUCTRPERM" in printed + stderr:
        raise ProfileError(PERMISSION)
    if "error" in said:
        raise ProfileError(said["error"])
    errors = re.findall(r"^==ERROR== (.*)$", printed + "\n" + stderr, re.MULTILINE)
    if errors:
        raise ProfileError(f"Nsight Compute failed: {' '.join(errors)}")
    if "calls" not in said:  # the child crashed
        words = [line for line in (stderr or printed).splitlines() if line.strip()]
        last = "\n".join(words[-5:]) or "it printed nothing"
        raise ProfileError(f"the profiled process ended early:\n{last}")


def sort(launches: list[raw.Launch], calls: list[dict[str, Any]]) -> list[Call]:
    """Assign launches to calls. A marker kernel comes before the launches of each call."""
    parts: list[list[raw.Launch]] = []
    for launch in launches:
        if child.MARKER in launch.kernel:
            parts.append([])
        elif parts:
            parts[-1].append(launch)
    if len(parts) != len(calls):
        raise ProfileError(
            f"Nsight Compute saw {len(parts)} of {len(calls)} calls; run it again, and if that "
            "does not help, with a newer version of it"
        )
    return [
        Call(fact["what"], fact["model_bytes"], [metrics.read(launch) for launch in part])
        for fact, part in zip(calls, parts, strict=True)
    ]
