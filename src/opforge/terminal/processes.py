# SPDX-License-Identifier: Apache-2.0
"""Helpers that end child processes and describe how they ended."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess


def end_with_parent() -> None:
    """Make the kernel end this process when its parent ends for any reason (on Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """End a process that leads a session, with all processes it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def ending(code: int) -> str:
    """Describe an exit code in words."""
    if code < 0:
        name = signal.Signals(-code).name
        meaning = {
            "SIGSEGV": "an invalid memory access",
            "SIGABRT": "an abort",
            "SIGFPE": "a division by 0",
            "SIGILL": "in a check build, an index beyond an array",
        }
        return f"ended by {name}" + (f" ({meaning[name]})" if name in meaning else "")
    return f"exit status {code}"
