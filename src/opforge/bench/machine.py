# SPDX-License-Identifier: Apache-2.0
"""Records the machine, the commit and the state of the GPU. It never changes a setting."""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
import time
import uuid
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import opforge

_REASONS = {
    "PowerCap": "power",
    "SwThermalSlowdown": "temperature",
    "HwThermalSlowdown": "temperature",
    "HwSlowdown": "hardware",
    "HwPowerBrakeSlowdown": "power brake",
}


def run_id() -> str:
    """A unique name for a run, which sorts by time."""
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{uuid.uuid4().hex[:6]}"


def provenance(device: str, method: str, commit: str | None) -> dict[str, Any]:
    """The facts that times depend on and that do not change during a run."""
    facts: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
        "opforge": opforge.__version__,
        "commit": commit or _commit(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpu": _cpu(),
        "threads": torch.get_num_threads(),
        "method": method,
    }
    if device == "cuda":
        facts["gpu"] = torch.cuda.get_device_name()
        facts["cuda"] = torch.version.cuda
        with _nvml() as nvml, contextlib.suppress(Exception):  # not every driver answers all
            if nvml is not None:
                facts["driver"] = nvml.nvmlSystemGetDriverVersion()
                handle = _handle(nvml)
                facts["power_limit_w"] = nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000
    with contextlib.suppress(PackageNotFoundError):
        facts["triton"] = version("triton")
    return facts


def state(device: str) -> dict[str, Any]:
    """Current clocks, power and temperature, and the reasons for throttling."""
    if device != "cuda":
        return {}
    with _nvml() as nvml, contextlib.suppress(Exception):  # not every driver answers all
        if nvml is None:
            return {}
        handle = _handle(nvml)
        reasons = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
        held = [
            word
            for name, word in _REASONS.items()
            for bit in [_reason_bit(nvml, name)]
            if reasons & bit
        ]
        return {
            "sm_mhz": nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            "memory_mhz": nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
            "power_w": nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
            "celsius": nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
            "held_down_by": ", ".join(dict.fromkeys(held)),
        }
    return {}


def _reason_bit(nvml: Any, name: str) -> int:
    prefix = "nvmlClocksThrottleReason"
    return int(getattr(nvml, f"{prefix}{name}", getattr(nvml, f"{prefix}Sw{name}", 0)))


@contextlib.contextmanager
def _nvml() -> Any:
    """The NVIDIA management library, or None if it cannot be used."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # not installed, no driver or no permission: record nothing
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def _handle(nvml: Any) -> Any:
    identity = torch.cuda.get_device_properties(torch.cuda.current_device()).uuid
    return nvml.nvmlDeviceGetHandleByUUID(f"GPU-{identity}")


def _cpu() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return f"{line.partition(':')[2].strip()}, {os.cpu_count()} cores"
    return f"{platform.machine()}, {os.cpu_count()} cores"


def _commit() -> str:
    """The commit of the sources, with -dirty if they differ from it, or ""."""
    here = Path(__file__)
    git = ["git", "-C", str(here.parent)]
    try:  # an environment inside another repository does not belong to it
        for command in (
            ["ls-files", "--error-unmatch", here.name],
            ["describe", "--always", "--dirty"],
        ):
            done = subprocess.run([*git, *command], capture_output=True, text=True, timeout=10)
            if done.returncode != 0:
                return ""
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()
