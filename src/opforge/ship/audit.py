# SPDX-License-Identifier: Apache-2.0
"""Which systems a wheel's libraries load on: the platform tag, by the symbols that they expect.

A system has a glibc and a C++ runtime. Their symbols have versions, and a library does not load
where one is missing. The tag ``manylinux_2_28`` promises that none is newer than glibc 2.28 and
the runtimes of its time. torch and the CUDA libraries that come with it are expected to be there.
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from opforge.errors import BuildError

# For a minor version of glibc 2, the newest symbols of the C++ runtime (GLIBCXX, CXXABI) and of
# libgcc (GCC) that every system of that age has. It starts with the oldest tag that installers of
# Python 3.10 know.
_RUNTIMES = {
    17: ("3.4.19", "1.3.7", "4.8.0"),
    24: ("3.4.22", "1.3.10", "4.8.0"),
    27: ("3.4.24", "1.3.11", "7.0.0"),
    31: ("3.4.28", "1.3.12", "7.0.0"),
    34: ("3.4.29", "1.3.13", "7.0.0"),
    35: ("3.4.30", "1.3.13", "12.0.0"),
    39: ("3.4.33", "1.3.15", "14.0.0"),
}
_OLDEST = min(_RUNTIMES)
TORCHS_OWN = 28  # torch's own wheels have this tag: an older one brings no further systems
_COLUMN = {"GLIBCXX": 0, "CXXABI": 1, "GCC": 2}

# What every such system has, and what comes with torch.
_SYSTEM = re.compile(
    r"lib(c|m|dl|rt|pthread|util|mvec)\.so\.\d+|libgcc_s\.so\.1|libstdc\+\+\.so\.6|ld-linux.*\.so\.\d+"
)
_WITH_TORCH = re.compile(
    r"lib(torch|c10|shm|cuda|cublas|cudnn|cufft|curand|cusolver|cusparse|cupti|nvrtc|nvJitLink|nccl)"
    r"[\w.-]*\.so.*"
)
_NEEDED = re.compile(r"\(NEEDED\).*\[(.+)\]")
_UNDEFINED = re.compile(r"\sUND\s+(\S+?)@+(\S+)")


@dataclass(frozen=True)
class Verdict:
    """A wheel's platform tag, and what decided it."""

    platform: str
    why: str

    @property
    def is_portable(self) -> bool:
        """Whether it is a manylinux tag, which package indexes accept."""
        return self.platform.startswith("manylinux")

    @property
    def is_as_wide_as_torch(self) -> bool:
        """Whether the wheel installs wherever torch's own wheels do."""
        found = re.match(r"manylinux_2_(\d+)_", self.platform)
        return found is not None and int(found[1]) <= TORCHS_OWN


@dataclass(frozen=True)
class _Demand:
    glibc: int | None  # the minor version of the system that has it; None: no system is known to
    library: str
    what: str


def judge(libraries: Iterable[Path]) -> Verdict:
    """The oldest platform that all these libraries load on."""
    libraries = sorted(libraries, key=lambda p: p.name)
    inside = {path.name for path in libraries}
    demands = [demand for path in libraries for demand in _demands(path, inside)]
    machine = platform.machine()
    if unknown := [d for d in demands if d.glibc is None]:
        more = f" (and {len(unknown) - 1} more)" if len(unknown) > 1 else ""
        return Verdict(f"linux_{machine}", f"{unknown[0].library} needs {unknown[0].what}{more}")
    newest = max((d.glibc or 0 for d in demands), default=0)
    if newest <= _OLDEST:
        return Verdict(f"manylinux_2_{_OLDEST}_{machine}", "no library needs anything newer")
    decisive = next(d for d in demands if d.glibc == newest)
    why = f"{decisive.library} needs {decisive.what}"
    return Verdict(f"manylinux_2_{newest}_{machine}", why)


def _demands(path: Path, inside: set[str]) -> list[_Demand]:
    text = _read(path)
    found = []
    for library in _NEEDED.findall(text):
        known = _SYSTEM.fullmatch(library) or _WITH_TORCH.fullmatch(library) or library in inside
        if not known:
            what = f"{library}, which is neither part of Linux nor comes with torch"
            found.append(_Demand(None, path.name, what))
    for symbol, version in _UNDEFINED.findall(text):
        kind, _, number = version.partition("_")
        if kind in ("GLIBC", *_COLUMN):
            found.append(_Demand(_first_with(kind, number), path.name, f"{symbol} ({version})"))
    if "GLIBC_ABI_DT_RELR" in text:  # a version without a symbol
        found.append(_Demand(36, path.name, "packed relocations (GLIBC_ABI_DT_RELR)"))
    return found


def _first_with(kind: str, number: str) -> int | None:
    """The minor version of the first glibc whose systems have a version of a symbol."""
    if kind == "GLIBC":
        match = re.fullmatch(r"2\.(\d+)(\.\d+)?", number)
        return max(int(match[1]), _OLDEST) if match else None
    if not re.fullmatch(r"[\d.]+", number):  # a feature of the C++ runtime: old, but not a number
        return _OLDEST if kind == "CXXABI" else None
    fits = (
        g for g, known in _RUNTIMES.items() if _numbers(known[_COLUMN[kind]]) >= _numbers(number)
    )
    return next(fits, None)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _read(path: Path) -> str:
    """What a library needs, by readelf, which comes with every C++ compiler on Linux."""
    program = shutil.which("readelf")
    if program is None:
        raise BuildError(
            "readelf is missing, and without it nobody knows which systems a wheel is for; "
            "install binutils (Debian, Ubuntu: apt-get install binutils)"
        )
    command = [program, "--wide", "--dynamic", "--dyn-syms", "--version-info", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, env={"LC_ALL": "C"})
    if done.returncode != 0 or "Error:" in done.stderr:
        raise BuildError(f"{path} is not a library that can be read: {done.stderr.strip()}")
    return done.stdout


def readable(text: str) -> str:
    """A text with the names of C++ functions as the source has them."""
    program = shutil.which("c++filt")
    if program is None:
        return text
    done = subprocess.run([program], input=text, capture_output=True, text=True)
    return done.stdout.strip() or text
