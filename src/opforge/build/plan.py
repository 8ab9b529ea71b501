# SPDX-License-Identifier: Apache-2.0
"""``plan(op, target)``: what would be compiled, how, and under which key. Nothing is run here."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

import opforge
from opforge import settings
from opforge.build import arch, narrowing, toolchain, unsupported
from opforge.build.signature import required_source, signature_header
from opforge.errors import RecordError, ToolchainError
from opforge.op import Op

TARGETS = ("cpu", "cuda")
# The CUDA sources, compiled for the CPU: plain, with callbacks at every access, with
# AddressSanitizer, with callbacks at every block and comparison.
SIM_TARGETS = ("sim", "sim-race", "sim-asan", "sim-cover")
# What only checks run, beside the kernels that users get.
CHECK_TARGETS = (*SIM_TARGETS, "cpu-cover")
COVERAGE = {"cpu": "cpu-cover", "sim": "sim-cover"}  # the builds that tell which code ran
ABI = (2, 10)  # the LibTorch stable ABI every library is built for
_SOURCES = {
    **dict.fromkeys(("cpu", "cpu-cover"), "*.cpp"),
    **dict.fromkeys(("cuda", *SIM_TARGETS), "*.cu"),
}
_COPIES = ("memcpy", "memmove", "memset")
_INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^">]+)[">]', re.MULTILINE)
INCLUDE_DIR = Path(__file__).parent.parent / "include"
SIM_DIR = Path(__file__).parent.parent / "sim"
SIM_INCLUDE_DIR = SIM_DIR / "include"
COVERAGE_DIR = Path(__file__).parent.parent / "coverage"
# Calls at the start of every block and before every comparison, and blocks as the source has them:
# -Og merges and moves few. An index beyond the end of an array is a trap. In DWARF 5, addr2line
# takes some lines of headers for the source's own.
OP_SOURCES, OPFORGE_SOURCES = "/op", "/opforge"  # what their debug information calls the folders
_COVERAGE_FLAGS = (
    "-fsanitize-coverage=trace-pc,trace-cmp",
    "-fsanitize=bounds",
    "-fsanitize-undefined-trap-on-error",
    "-Og",
    "-gdwarf-4",
    "-g1",
    "-fno-jump-tables",  # every jump can be followed
)


@dataclass(frozen=True)
class Plan:
    """One library to build, complete: the compiler runs these commands and nothing else."""

    op: str
    target: str
    sources: tuple[Path, ...]
    compile: tuple[str, ...]  # followed by: -o OBJECT SOURCE
    link: tuple[str, ...]  # followed by: -o LIBRARY OBJECTS
    signature: str  # the generated header
    archs: tuple[str, ...]
    cpu_flags: tuple[str, ...]  # what the CPU must have to run it
    memory_per_job: int  # bytes a compile job may take
    ingredients: dict[str, str] = field(repr=False)  # what the key is made of, by name
    warning: str | None = None
    required: str = ""  # the generated source, which links only if every schema has a kernel
    roots: tuple[Path, ...] = ()  # the folders that the op's own sources and headers are in

    @functools.cached_property
    def key(self) -> str:
        """Changes when anything does that could change the library."""
        return hashlib.sha256(json.dumps(self.ingredients, sort_keys=True).encode()).hexdigest()

    @property
    def entry(self) -> str:
        """The name of its place in the cache."""
        return f"{self.op}-{self.target}-{self.key[:20]}"

    @property
    def library(self) -> str:
        """The file name of the library."""
        return f"{self.op}-{self.target}.so"

    @property
    def facts(self) -> dict[str, object]:
        """What a manifest says about the library."""
        return {
            "op": self.op,
            "target": self.target,
            "key": self.key,
            "abi": list(ABI),
            "machine": platform.machine(),
            "archs": list(self.archs),
            "cpu_flags": list(self.cpu_flags),
            "built_with": self.ingredients["compiler"],
            "opforge": opforge.__version__,
            "ingredients": self.ingredients,
        }


def has_sources(op: Op, target: str) -> bool:
    """Whether the op's folder has something to compile for this target."""
    return op.folder is not None and any(op.folder.glob(_SOURCES[target]))


def plan(op: Op, target: str, archs: str | None = None) -> Plan:
    """What it takes to build ``op`` for ``target``: "cpu", "cuda" or one of the simulator's."""
    if op.folder is None:
        raise RecordError(f"{op.name} is not loaded from a folder")
    if target not in _SOURCES:
        raise RecordError(f"unknown target {target!r}; targets are {', '.join(_SOURCES)}")
    sources = tuple(sorted(op.folder.glob(_SOURCES[target])))
    if not sources:
        kind = "CPU" if target.startswith("cpu") else "CUDA"
        raise RecordError(f"{op.name} has no {kind} source ({_SOURCES[target]}) in {op.folder}")
    if target == "cuda" and not settings.cuda_enabled():
        raise ToolchainError("CUDA is turned off by USE_CUDA=0")
    cxx = toolchain.find_cxx()
    signature = signature_header(op)
    common = [
        "-std=c++20",
        f"-DTORCH_TARGET_VERSION=0x{ABI[0]:02x}{ABI[1]:02x}000000000000",
        f"-DOPFORGE_NAMESPACE={namespace(op, target)}",
        f"-DOPFORGE_DISPATCH_KEY={'CUDA' if target == 'cuda' else 'CPU'}",
    ]
    folders = [INCLUDE_DIR, op.folder]
    extra_identity: dict[str, str] = {}
    if target in ("cpu", "cpu-cover"):
        compiler, level = cxx, toolchain.cpu_level(platform.machine(), toolchain.cpu_flags())
        flags = [*common, "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", *level]
        if target == "cpu-cover":
            flags += _coverage_flags(cxx)
        else:
            flags += ["-g", "-O0"] if settings.debug() else ["-O2", "-DNDEBUG"]
        chosen: tuple[str, ...] = ()
        cpu_flags = ("avx2", "fma", "f16c", "bmi2") if level else ()
        libraries = ["-ltorch_cpu"]
        warning, memory = None, 1 << 30
    elif target in SIM_TARGETS:
        unsupported.check(op.folder)
        compiler, chosen, cpu_flags = cxx, (), ()
        flags = [*common, "-DUSE_CUDA", "-DOPFORGE_SIM", "-fvisibility=hidden"]
        flags += sim_flags(cxx, target)
        flags += ["-x", "c++"]  # for a .cu, too
        folders.insert(0, SIM_INCLUDE_DIR)
        # Two thirds of a library are line numbers.
        libraries = ["-ltorch_cpu", "-Wl,--compress-debug-sections=zlib"]
        if target == "sim-race":  # the simulator wants to see these, too
            libraries += [f"-Wl,--wrap={name}" for name in _COPIES]
        warning, memory = None, 1 << 30
    else:
        toolkit = toolchain.find_cuda()
        warning = toolchain.check_pair(toolkit, cxx)
        compiler, chosen, cpu_flags = toolkit.nvcc, arch.select(archs), ()
        flags = [*common, "-DUSE_CUDA", "-ccbin", cxx.path, "-Xcompiler=-fPIC,-fvisibility=hidden"]
        flags += arch.nvcc_flags(chosen)
        flags += ["-g", "-G"] if settings.debug() else ["-O3", "-DNDEBUG"]
        # A CPU-only torch has no libtorch_cuda.so; the compiler puts an empty one in stubs/.
        # A static CUDA runtime would break cluster launches, so the shared one is linked.
        runtime = toolkit.runtime
        libraries = ["-Lstubs", "-ltorch_cuda", "-ltorch_cpu", f"-L{runtime.parent}"]
        libraries += [f"-l:{runtime.name}"]
        memory = 2 << 30
        extra_identity = {"host compiler": cxx.identity}
    includes = [*(f"-I{p}" for p in (*folders, ".")), "-isystem", str(_torch_dir() / "include")]
    if target in COVERAGE.values():  # a library may have been built from another checkout
        places = {OP_SOURCES: op.folder, OPFORGE_SOURCES: INCLUDE_DIR}
        includes += [f"-fdebug-prefix-map={folder}={name}" for name, folder in places.items()]
        extra_identity = {"names of sources": " ".join(places)}
    link = [cxx.path, "-shared", "-Wl,--no-as-needed", f"-L{_torch_dir() / 'lib'}", *libraries]
    ingredients = {
        "opforge": opforge.__version__,
        "torch": torch.__version__,
        "stable ABI": ".".join(map(str, ABI)),
        "compiler": compiler.identity,
        **extra_identity,
        "flags": " ".join(flags),
        "link": " ".join(libraries),
        "architectures": " ".join(chosen),
        "machine": platform.machine(),
        "signature": signature_digest(op),
        **_digests(sources, (op.folder, *folders)),
    }
    return Plan(
        op=op.name,
        target=target,
        sources=sources,
        compile=(compiler.path, "-c", *flags, *includes),
        link=tuple(link),
        signature=signature,
        archs=chosen,
        cpu_flags=cpu_flags,
        memory_per_job=memory,
        ingredients=ingredients,
        warning=warning,
        required=required_source(op),
        roots=(op.folder, INCLUDE_DIR),
    )


def plan_simulator() -> Plan:
    """The simulator's runtime: one library, which the simulated ops of all kinds call into."""
    _demand_x86("the simulator runs on")
    runtime = SIM_DIR / "runtime"
    return _plan_library(
        "simulator",
        "sim",
        sorted(runtime.glob("*.cpp")),
        (runtime, SIM_INCLUDE_DIR),
        flags=["-g1"],
        includes=[f"-I{SIM_INCLUDE_DIR}"],
        libraries=["-ldl", "-lpthread", "-lrt"],
    )


def plan_guard() -> Plan:
    """The library that puts tensors against inaccessible pages, for checks on this machine."""
    _demand_x86("guard pages need")
    folder, runtime = SIM_DIR.parent / "truth" / "guard", SIM_DIR / "runtime"
    return _plan_library(
        "guard",
        "check",
        [*sorted(folder.glob("*.cpp")), runtime / "symbols.cpp"],
        (folder, runtime),
        includes=[f"-I{_torch_dir() / 'include'}"],
        libraries=[f"-L{_torch_dir() / 'lib'}", "-lc10", "-ldl"],
        torch=torch.__version__,  # it is built for torch's C++ headers, not for the stable ABI
    )


def plan_recorder() -> Plan:
    """What builds with coverage call: one library, which notes blocks and comparisons."""
    sources = [COVERAGE_DIR / "recorder.cpp"]
    return _plan_library("recorder", "cover", sources, (COVERAGE_DIR,))


def _demand_x86(what: str) -> None:
    if platform.machine() != "x86_64":
        raise ToolchainError(f"{what} x86-64, this is {platform.machine()}")


def _plan_library(
    name: str,
    target: str,
    sources: list[Path],
    roots: tuple[Path, ...],
    flags: Sequence[str] = (),
    includes: Sequence[str] = (),
    libraries: Sequence[str] = (),
    **identity: str,
) -> Plan:
    """A library of opforge's own for checks on this machine: it is of no op."""
    cxx = toolchain.find_cxx()
    every = ["-std=c++20", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", *flags]
    every += ["-O0", "-g"] if settings.debug() else ["-O2"]
    return Plan(
        op=name,
        target=target,
        sources=tuple(sources),
        compile=(cxx.path, "-c", *every, *includes),
        link=(cxx.path, "-shared", *libraries),
        signature="",
        archs=(),
        cpu_flags=(),
        memory_per_job=1 << 30,
        ingredients={
            "opforge": opforge.__version__,
            "compiler": cxx.identity,
            "flags": " ".join(every),
            "machine": platform.machine(),
            **identity,
            **_digests(tuple(sources), roots),
        },
    )


def namespace(op: Op, target: str) -> str:
    """``torch.ops.<namespace>`` of the op as built for ``target``; check builds have their own."""
    return f"{op.namespace}_{target.replace('-', '_')}" if target in CHECK_TARGETS else op.namespace


def sim_flags(cxx: toolchain.Compiler, target: str) -> list[str]:
    """How the CUDA sources are compiled for the simulator."""
    level = toolchain.cpu_level(platform.machine(), toolchain.cpu_flags())
    flags = [
        "-fPIC",
        *level,
        # Products and sums are rounded one by one, as the source says. (nvcc contracts by default.)
        "-ffp-contract=off",
        "-fno-strict-aliasing",  # the GPU has none
        "-fstack-clash-protection",  # a large local array must not jump over the guard page
        "-Werror=uninitialized",  # variables, which no memory checker sees
        "-Wno-maybe-uninitialized",
        "-Wno-format",  # printf("%d", threadIdx.x)
        "-Wno-unknown-pragmas",  # unroll
        "-g" if settings.debug() else "-g1",
    ]
    if target == "sim-race":
        # The calls the sanitizers insert go to functions of the simulator's own.
        flags += ["-fsanitize=thread,alignment,signed-integer-overflow", "-O1"]
        if cxx.family == "clang":
            flags += ["-mllvm", "-tsan-instrument-func-entry-exit=0"]
        else:
            flags += ["--param=tsan-instrument-func-entry-exit=0"]
            flags += ["-fno-tree-sra"]  # it would take vector accesses apart
            # Expanded in place they would come by no callback; see also the linker's flags.
            flags += [f"-fno-builtin-{name}" for name in _COPIES]
    elif target == "sim-asan":
        flags += ["-fsanitize=address", "-fsanitize-recover=address", "-fno-omit-frame-pointer"]
        # Checks by calls: two thirds of the time to compile.
        threshold = "asan-instrumentation-with-call-threshold=0"
        flags += ["-mllvm", f"-{threshold}"] if cxx.family == "clang" else [f"--param={threshold}"]
        flags += ["-O1"]
    elif target == "sim-cover":
        flags += _coverage_flags(cxx)
    else:
        # -O2 would take half as long again to compile and save little in a run.
        flags += ["-O0"] if settings.debug() else ["-O1"]
    return flags


def _coverage_flags(cxx: toolchain.Compiler) -> list[str]:
    return [*_COVERAGE_FLAGS, narrowing.FLAGS[cxx.family]]


def signature_digest(op: Op) -> str:
    """Identifies the C++ signatures that the record's schemas promise."""
    return hashlib.sha256(signature_header(op).encode()).hexdigest()


def _digests(sources: tuple[Path, ...], roots: tuple[Path, ...]) -> dict[str, str]:
    """A digest for each source and each header it reaches beside itself or inside ``roots``.

    Other headers belong to the compiler, CUDA or torch, whose versions are in the key already.
    """
    found: dict[str, str] = {}
    queue = list(sources)
    seen = set(queue)
    while queue:
        path = queue.pop()
        text = path.read_bytes()
        base = next((r for r in roots if path.is_relative_to(r)), None)
        kind = "source" if path in sources else "header"
        name = path.relative_to(base) if base else path
        found[f"{kind} {name}"] = hashlib.sha256(text).hexdigest()
        for included in _INCLUDE.findall(text.decode(errors="replace")):
            for folder in (path.parent, *roots):
                # os.path, because pathlib would make this the slowest part of a cached load
                if os.path.isfile(candidate := os.path.join(folder, included)):
                    header = Path(os.path.realpath(candidate))
                    if header not in seen:
                        seen.add(header)
                        queue.append(header)
                    break
    return found


@functools.cache
def _torch_dir() -> Path:
    return Path(torch.__file__).parent
