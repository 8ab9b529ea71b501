# SPDX-License-Identifier: Apache-2.0
"""All environment variables that opforge reads. Each is read at use, so that tests can set it."""

from __future__ import annotations

import os
from pathlib import Path

from opforge.errors import CacheError, SettingError

# name -> meaning; `opforge doctor` prints those that are set.
VARIABLES = {
    "OPFORGE_CACHE_DIR": "where built libraries are kept",
    "OPFORGE_PREBUILT": "a folder of libraries from `opforge build --out`, searched first",
    "OPFORGE_JIT": "0: never compile at run time",
    "OPFORGE_LOCK_TIMEOUT": "seconds to wait for a build by another process (default 900)",
    "OPFORGE_SIM_TIMEOUT": "seconds after which a simulated block is stopped (default 60)",
    "OPFORGE_CHECK_LABELS": "1: losses also validate labels on a GPU, which waits for the GPU",
    "TORCH_CUDA_ARCH_LIST": "GPU architectures to build for, such as '9.0' or 'Ampere;Hopper'",
    "CUDA_HOME": "the CUDA toolkit to use",
    "CXX": "the host C++ compiler to use",
    "MAX_JOBS": "the largest number of parallel compile jobs",
    "USE_CUDA": "0: do not use CUDA at all",
    "DEBUG": "1: build with debug information and device asserts",
}


def _flag(name: str, default: bool) -> bool:
    value = os.environ.get(name, "").strip().lower()
    return default if not value else value not in ("0", "off", "false", "no")


def jit_enabled() -> bool:
    """Whether kernels may be compiled at run time."""
    return _flag("OPFORGE_JIT", True)


def check_labels() -> bool:
    """Whether losses validate labels on a GPU, which has to wait for the GPU."""
    return _flag("OPFORGE_CHECK_LABELS", False)


def cuda_enabled() -> bool:
    """Whether CUDA may be used."""
    return _flag("USE_CUDA", True)


def debug() -> bool:
    """Whether to build with debug information."""
    return _flag("DEBUG", False)


def lock_timeout() -> float:
    """Seconds to wait for a build by another process."""
    value = os.environ.get("OPFORGE_LOCK_TIMEOUT", "900")
    try:
        return float(value)
    except ValueError:
        raise CacheError(f"OPFORGE_LOCK_TIMEOUT={value!r} is not a number of seconds") from None


def sim_timeout() -> int:
    """Seconds after which a simulated block is stopped."""
    value = os.environ.get("OPFORGE_SIM_TIMEOUT", "60")
    if not value.isdecimal() or int(value) < 1:
        raise SettingError(
            f"OPFORGE_SIM_TIMEOUT={value!r} is not a positive whole number of seconds"
        )
    return int(value)


def prebuilt_dir() -> Path | None:
    """The folder of prebuilt libraries, or None."""
    value = os.environ.get("OPFORGE_PREBUILT")
    return Path(value).expanduser() if value else None


def explicit_cache_dir() -> Path | None:
    """The cache directory from OPFORGE_CACHE_DIR, or None."""
    value = os.environ.get("OPFORGE_CACHE_DIR")
    return Path(value).expanduser() if value else None


def default_cache_dir() -> Path:
    """The cache directory of this user, used by default."""
    import platformdirs  # not there where an exported kernel runs, which needs no cache

    return Path(platformdirs.user_cache_dir("opforge", appauthor=False))
