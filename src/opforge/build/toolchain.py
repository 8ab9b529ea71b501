# SPDX-License-Identifier: Apache-2.0
"""Finds the compilers: the host's C++ compiler and, if there is one, the CUDA toolkit."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import torch
from packaging.version import Version

from opforge.build import cache
from opforge.errors import CacheError, ToolchainError

# The host compilers that each CUDA release supports (gcc lowest, gcc highest, clang lowest, clang
# highest), as its own crt/host_config.h enforces.
_HOST_RANGE = {
    "12.6": (6, 13, 3, 18),
    "12.8": (6, 14, 3, 19),
    "12.9": (6, 14, 3, 19),
    "13.0": (6, 15, 3, 20),
    "13.1": (6, 15, 3, 21),
}
INSTALL_CUDA = "pip install 'opforge[cuda]'"
_MEMORY = "toolchain.json"
INSTALL_CXX = "install g++ (Debian, Ubuntu: apt-get install g++) or set CXX"


@dataclass(frozen=True)
class Compiler:
    """A compiler as found: its path, family and version."""

    path: str
    family: str  # "gcc", "clang" or "nvcc"
    version: str

    @property
    def identity(self) -> str:
        """Its part of a cache key."""
        return f"{self.family} {self.version} ({os.path.realpath(self.path)})"

    @property
    def major(self) -> int:
        """The first number of its version."""
        return Version(self.version).major


@dataclass(frozen=True)
class CudaToolkit:
    """nvcc and the runtime library that belongs to it."""

    nvcc: Compiler
    root: Path
    origin: str  # how it was found, for the doctor

    @property
    def runtime(self) -> Path:
        """The shared CUDA runtime. The pip toolkit ships it without the bare ``.so`` link."""
        for folder in ("lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib"):
            found = sorted((self.root / folder).glob("libcudart.so.*"))
            if found:
                return found[0]
        raise ToolchainError(
            f"{self.root} has nvcc but no libcudart.so; install the CUDA runtime: {INSTALL_CUDA}"
        )


def find_cxx() -> Compiler:
    """The host C++ compiler: ``CXX``, else g++, c++ or clang++ on PATH."""
    wanted = os.environ.get("CXX")
    for name in [wanted] if wanted else ["g++", "c++", "clang++"]:
        if path := shutil.which(name):
            return _describe_cxx(path)
    looked = f"CXX={wanted}" if wanted else "g++, c++ or clang++ on PATH"
    raise ToolchainError(f"no C++ compiler found ({looked}); {INSTALL_CXX}")


def find_cuda() -> CudaToolkit:
    """The CUDA toolkit: ``CUDA_HOME``, then nvcc on PATH, then the pip toolkit."""
    if home := os.environ.get("CUDA_HOME"):
        path = Path(home) / "bin" / "nvcc"
        if not path.is_file():
            raise ToolchainError(
                f"CUDA_HOME={home} has no bin/nvcc; set it to a CUDA toolkit or unset it"
            )
        return _describe_cuda(str(path), "CUDA_HOME")
    if found := shutil.which("nvcc"):
        return _describe_cuda(found, "PATH")
    if found := pip_program("nvcc"):
        return _describe_cuda(found, "pip toolkit")
    raise ToolchainError(
        "no nvcc found (CUDA_HOME, PATH, pip toolkit), so CUDA kernels cannot be compiled; "
        f"install it: {INSTALL_CUDA}"
    )


def check_pair(toolkit: CudaToolkit, cxx: Compiler) -> str | None:
    """Raise if nvcc does not fit the host compiler or torch; return a warning for a minor gap."""
    release = ".".join(toolkit.nvcc.version.split(".")[:2])
    if limits := _HOST_RANGE.get(release):
        low, high = limits[:2] if cxx.family == "gcc" else limits[2:]
        if not low <= cxx.major <= high:
            raise ToolchainError(
                f"nvcc {release} supports {cxx.family} {low} to {high}, but {cxx.path} is "
                f"{cxx.family} {cxx.version}; set CXX to a compiler in that range"
            )
    built_for = torch.version.cuda
    if built_for is None:
        return None
    ours, theirs = Version(release), Version(built_for)
    if ours.major != theirs.major:
        raise ToolchainError(
            f"nvcc is {release}, but torch {torch.__version__} is built for CUDA {built_for}; the "
            f"major versions must match. Install a CUDA {theirs.major} toolkit and set CUDA_HOME"
        )
    if ours.minor != theirs.minor:
        return (
            f"nvcc is {release}, but torch is built for CUDA {built_for}; minor versions may differ"
        )
    return None


def cpu_level(machine: str, flags: str) -> tuple[str, ...]:
    """The instruction set for CPU kernels: one that every server of the last ten years has.

    It is not -march=native: machines of different kinds may share a home directory, and kernels
    built on a newer one would crash on the older ones.
    """
    has_v3 = {"avx2", "fma", "f16c", "bmi2"} <= set(flags.split())
    return ("-march=x86-64-v3",) if machine == "x86_64" and has_v3 else ()


def _describe_cxx(path: str) -> Compiler:
    text = _remembered([path, "--version"])
    # "g++ (Vendor 1.2-3) 12.2.0": the version in brackets is the vendor's
    first_line = re.sub(r"\([^)]*\)", "", text.splitlines()[0] if text else "")
    match = re.search(r"\d+\.\d+(\.\d+)?", first_line)
    if not match:
        raise ToolchainError(f"{path} --version printed no version; is it a C++ compiler?")
    return Compiler(path, "clang" if "clang" in text.lower() else "gcc", match[0])


def _describe_cuda(path: str, origin: str) -> CudaToolkit:
    text = _remembered([path, "--version"])
    match = re.search(r"V(\d+\.\d+\.\d+)", text) or re.search(r"release (\d+\.\d+)", text)
    if not match:
        raise ToolchainError(f"{path} --version printed no CUDA release; is it nvcc?")
    # nvcc on PATH may be a wrapper script, so ask it where its toolkit is.
    dry = _remembered([path, "--dryrun", "-c", "-x", "cu", os.devnull, "-o", os.devnull])
    top = re.search(r"^#\$ TOP=(.*)$", dry, re.MULTILINE)
    root = Path(top[1]).resolve() if top else Path(os.path.realpath(path)).parent.parent
    return CudaToolkit(Compiler(path, "nvcc", match[1]), root, origin)


def pip_program(name: str) -> str | None:
    """One of NVIDIA's programs as a pip package has installed it."""
    try:
        from cuda.pathfinder import find_nvidia_binary_utility
    except ImportError:
        return None
    found: str | None = find_nvidia_binary_utility(name)
    return found


def _remembered(command: list[str]) -> str:
    """Output of a version query, remembered by the program's path, size and time.

    nvcc takes 50 ms to answer one.
    """
    status = os.stat(command[0])
    key = json.dumps([command, os.path.realpath(command[0]), status.st_size, status.st_mtime_ns])
    known = _memory()
    if known is not None and key in known:
        return str(known[key])
    status_code, text = _query(command)
    if known is not None and status_code == 0 and _is_binary(command[0]):
        with contextlib.suppress(OSError):  # a full disk: ask again next time
            cache.replace_text(cache.root() / _MEMORY, json.dumps({**known, key: text}))
    return text


def _is_binary(path: str) -> bool:
    """Whether this is the program itself: a script stays the same when what it calls changes."""
    with open(path, "rb") as program:
        return program.read(4) == b"\x7fELF"


def _memory() -> dict[str, str] | None:
    try:
        known = json.loads((cache.root() / _MEMORY).read_text())
    except CacheError:
        return None
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _query(command: list[str]) -> tuple[int, str]:
    """Exit status and output of a version query."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolchainError(f"{command[0]} could not be run: {error}") from None
    return done.returncode, done.stdout + done.stderr
