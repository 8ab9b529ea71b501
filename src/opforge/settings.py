# SPDX-License-Identifier: Apache-2.0
"""Every environment variable opforge reads, in one place. Read at use, so tests can set them."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

from opforge.errors import CacheError, SettingError

# name -> what it does; `opforge doctor` prints the ones that are set.
VARIABLES = {
    "OPFORGE_CACHE_DIR": "where built libraries are kept",
    "OPFORGE_PREBUILT": "a folder of libraries made by `opforge build --out`, tried first",
    "OPFORGE_JIT": "0: never compile at run time",
    "OPFORGE_LOCK_TIMEOUT": "seconds to wait for another process's build (default 900)",
    "OPFORGE_SIM_TIMEOUT": "seconds a simulated block may take before it is stopped (default 60)",
    "OPFORGE_CHECK_LABELS": "1: losses look at labels on a GPU, too, and wait for it",
    "TORCH_CUDA_ARCH_LIST": "GPU architectures to build for, such as '9.0' or 'Ampere;Hopper'",
    "CUDA_HOME": "the CUDA toolkit to use",
    "CXX": "the host C++ compiler to use",
    "MAX_JOBS": "parallel compile jobs at most",
    "USE_CUDA": "0: leave CUDA out entirely",
    "DEBUG": "1: build with debug information and device asserts",
}


def _flag(name: str, default: bool) -> bool:
    value = os.environ.get(name, "").strip().lower()
    return default if not value else value not in ("0", "off", "false", "no")


def jit_enabled() -> bool:
    """Whether kernels may be compiled at run time."""
    return _flag("OPFORGE_JIT", True)


def check_labels() -> bool:
    """Whether labels on a GPU are looked at, at the cost of waiting for them."""
    return _flag("OPFORGE_CHECK_LABELS", False)


def cuda_enabled() -> bool:
    """Whether CUDA is wanted at all."""
    return _flag("USE_CUDA", True)


def debug() -> bool:
    """Whether to build with debug information."""
    return _flag("DEBUG", False)


def lock_timeout() -> float:
    """Seconds to wait for another process's build."""
    value = os.environ.get("OPFORGE_LOCK_TIMEOUT", "900")
    try:
        return float(value)
    except ValueError:
        raise CacheError(f"OPFORGE_LOCK_TIMEOUT={value!r} is not a number of seconds") from None


def sim_timeout() -> int:
    """Seconds a simulated block may take before it is stopped."""
    value = os.environ.get("OPFORGE_SIM_TIMEOUT", "60")
    if not value.isdecimal() or int(value) < 1:
        raise SettingError(
            f"OPFORGE_SIM_TIMEOUT={value!r} is not a positive whole number of seconds"
        )
    return int(value)


def prebuilt_dir() -> Path | None:
    """The folder of prebuilt libraries, if one is named."""
    value = os.environ.get("OPFORGE_PREBUILT")
    return Path(value).expanduser() if value else None


def explicit_cache_dir() -> Path | None:
    """The cache directory, if one is named."""
    value = os.environ.get("OPFORGE_CACHE_DIR")
    return Path(value).expanduser() if value else None


def default_cache_dir() -> Path:
    """The user's own cache directory."""
    return Path(platformdirs.user_cache_dir("opforge", appauthor=False))
