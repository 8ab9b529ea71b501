# SPDX-License-Identifier: Apache-2.0
"""Examines the machine: versions, toolchains, GPU, cache, and whether each op is built."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from packaging.version import Version

import opforge
from opforge import discover, settings
from opforge.build import arch, cache, load, toolchain
from opforge.build.plan import ABI, plan_simulator
from opforge.build.targets import FOR_USERS, has_sources
from opforge.errors import OpforgeError
from opforge.terminal import extras


@dataclass(frozen=True)
class Finding:
    """One line of ``opforge doctor``."""

    what: str
    state: str  # "ok", "note" (something optional is missing) or "fault"
    found: str
    remedy: str = ""


def examine() -> list[Finding]:
    """All findings, in the order in which a build needs the parts."""
    return [*_versions(), *_extras(), *_toolchains(), *_simulator(), *_gpu(), *_places(), *_ops()]


def _versions() -> Iterator[Finding]:
    yield Finding("opforge", "ok", f"{opforge.__version__}, Python {platform.python_version()}")
    running = Version(torch.__version__)
    built_for = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU only"
    if (running.major, running.minor) < ABI:
        remedy = f"pip install 'torch>={ABI[0]}.{ABI[1]}'"
        yield Finding("torch", "fault", f"{torch.__version__} is too old", remedy)
    else:
        yield Finding("torch", "ok", f"{torch.__version__} ({built_for})")


def _extras() -> Iterator[Finding]:
    for name, packages in extras.EXTRAS.items():
        what = f"opforge[{name}]"
        if gone := extras.missing(name):
            yield Finding(what, "note", f"not installed: {', '.join(gone)}", extras.install(name))
        else:
            yield Finding(what, "ok", ", ".join(packages))


def _toolchains() -> Iterator[Finding]:
    cxx = None
    try:
        cxx = toolchain.find_cxx()
        yield Finding("C++ compiler", "ok", f"{cxx.family} {cxx.version} at {cxx.path}")
    except OpforgeError as error:
        yield Finding("C++ compiler", "note", str(error), toolchain.INSTALL_CXX)
    if not settings.cuda_enabled():
        yield Finding("CUDA toolkit", "note", "turned off by USE_CUDA=0", "unset USE_CUDA")
        return
    try:
        toolkit = toolchain.find_cuda()
    except OpforgeError as error:
        yield Finding("CUDA toolkit", "note", str(error), toolchain.INSTALL_CUDA)
        return
    try:
        warning = toolchain.check_pair(toolkit, cxx) if cxx else None
        text = f"nvcc {toolkit.nvcc.version} from {toolkit.origin} at {toolkit.nvcc.path}"
        yield Finding("CUDA toolkit", "note" if warning else "ok", text, warning or "")
    except OpforgeError as error:
        yield Finding(
            "CUDA toolkit", "fault", str(error), "see above: point CXX or CUDA_HOME elsewhere"
        )
    try:
        yield Finding("architectures", "ok", " ".join(arch.select()))
    except OpforgeError as error:
        yield Finding("architectures", "fault", str(error), "correct TORCH_CUDA_ARCH_LIST")


def _simulator() -> Iterator[Finding]:
    try:
        plan_simulator()
    except OpforgeError as error:
        yield Finding("simulator", "note", str(error))
        return
    if shutil.which("addr2line") is None:
        remedy = "install binutils (Debian, Ubuntu: apt-get install binutils)"
        yield Finding(
            "simulator", "note", "works, but cannot name source lines without addr2line", remedy
        )
    else:
        yield Finding("simulator", "ok", "opforge sim runs CUDA kernels without a GPU")


def _gpu() -> Iterator[Finding]:
    if torch.version.cuda is None:
        yield Finding(
            "GPU", "note", "this build of torch has no CUDA", "install a CUDA build of torch"
        )
    elif not torch.cuda.is_available():
        yield Finding(
            "GPU", "note", "torch sees no GPU", "check nvidia-smi and CUDA_VISIBLE_DEVICES"
        )
    else:
        for i in range(torch.cuda.device_count()):
            facts = torch.cuda.get_device_properties(i)
            memory = f"{facts.total_memory / 2**30:.0f} GiB"
            found = f"{facts.name}, compute capability {facts.major}.{facts.minor}, {memory}"
            yield Finding(f"GPU {i}", "ok", found)


def _places() -> Iterator[Finding]:
    try:
        entries = cache.entries()
        size = sum(e.manifest["size"] for e in entries) / 1e6
        yield Finding("cache", "ok", f"{cache.root()}: {len(entries)} libraries, {size:.1f} MB")
    except OpforgeError as error:
        yield Finding("cache", "fault", str(error), "set OPFORGE_CACHE_DIR")
    for name, meaning in settings.VARIABLES.items():
        if name in os.environ:
            yield Finding(name, "ok", f"{os.environ[name]} ({meaning})")


def _ops() -> Iterator[Finding]:
    for name in discover.builtin_names():
        op = discover.find(name)
        for target in FOR_USERS:
            if not has_sources(op, target):
                continue
            ready, text = load.status(op, target)
            remedy = "" if ready else f"opforge build {name} --{target}"
            yield Finding(f"{name} ({target})", "ok" if ready else "note", text, remedy)
