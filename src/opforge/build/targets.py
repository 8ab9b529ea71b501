# SPDX-License-Identifier: Apache-2.0
"""The targets a library is built for: which sources, by which compiler, with which flags.

Users get ``cpu`` and ``cuda``. The others serve checks alone: the CUDA sources compiled for the
CPU (``sim``), plain, with callbacks at every access (``sim-race``), with AddressSanitizer
(``sim-asan``); and builds that tell which code ran (``sim-cover``, ``cpu-cover``).
"""

from __future__ import annotations

import platform
from dataclasses import dataclass, field
from pathlib import Path

from opforge import settings
from opforge.build import arch, narrowing, toolchain, unsupported
from opforge.build.cpu import cpu_flags
from opforge.build.toolchain import Compiler
from opforge.errors import RecordError, ToolchainError
from opforge.op import Op, files_of

SIM_DIR = Path(__file__).parent.parent / "sim"
SIM_INCLUDE_DIR = SIM_DIR / "include"
_COPIES = ("memcpy", "memmove", "memset")
# Calls at the start of every block and before every comparison, and blocks as the source has them:
# -Og merges and moves few. An index beyond the end of an array is a trap. In DWARF 5, addr2line
# takes some lines of headers for the source's own.
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
class Tools:
    """The compiler, linker and flags for a target on this machine."""

    compiler: Compiler
    flags: list[str]
    linker: Compiler
    libraries: list[str]
    folders: list[Path] = field(default_factory=list)  # headers that come before opforge's own
    archs: tuple[str, ...] = ()
    cpu_flags: tuple[str, ...] = ()  # what the CPU must have to run it
    identity: dict[str, str] = field(default_factory=dict)  # more for the key
    warning: str | None = None
    memory_per_job: int = 1 << 30


@dataclass(frozen=True)
class Target:
    """One target. ``kind`` is what a record calls its group: cpu, cuda or sim."""

    name: str
    kind: str
    language: str  # in messages
    pattern: str  # of source files
    dispatch_key: str = "CPU"
    for_users: bool = True  # what checks alone run has a namespace of its own
    covers: bool = False  # it tells which code ran

    def sources(self, op: Op) -> tuple[Path, ...]:
        """The op's source files for this target, also those in subfolders."""
        return tuple(files_of(op.folder, self.pattern)) if op.folder is not None else ()

    def namespace(self, op: Op) -> str:
        """``torch.ops.<namespace>`` of the op as built for this target."""
        return op.namespace if self.for_users else f"{op.namespace}_{self.name.replace('-', '_')}"

    def tools(self, op: Op, archs: str | None) -> Tools:
        """The compiler and its flags on this machine; raises where something is missing."""
        raise NotImplementedError


class _Cpu(Target):
    def tools(self, op: Op, archs: str | None) -> Tools:
        cxx = toolchain.find_cxx()
        level = toolchain.cpu_level(platform.machine(), cpu_flags())
        flags = ["-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", *level]
        if self.covers:
            flags += coverage_flags(cxx)
        else:
            flags += ["-g", "-O0"] if settings.debug() else ["-O2", "-DNDEBUG"]
        needed = ("avx2", "fma", "f16c", "bmi2") if level else ()
        return Tools(cxx, flags, cxx, ["-ltorch_cpu"], cpu_flags=needed)


class _Cuda(Target):
    def tools(self, op: Op, archs: str | None) -> Tools:
        if not settings.cuda_enabled():
            raise ToolchainError("CUDA is turned off by USE_CUDA=0")
        cxx, toolkit = toolchain.find_cxx(), toolchain.find_cuda()
        chosen = arch.with_needed(arch.select(archs), op.build.archs)
        flags = ["-DUSE_CUDA", "-ccbin", cxx.path, "-Xcompiler=-fPIC,-fvisibility=hidden"]
        flags += arch.nvcc_flags(chosen)
        flags += ["-g", "-G"] if settings.debug() else ["-O3", "-DNDEBUG"]
        # A CPU-only torch has no libtorch_cuda.so; the compiler puts an empty one in stubs/.
        # A static CUDA runtime would break cluster launches, so the shared one is linked.
        runtime = toolkit.runtime
        libraries = ["-Lstubs", "-ltorch_cuda", "-ltorch_cpu", f"-L{runtime.parent}"]
        return Tools(
            toolkit.nvcc,
            flags,
            cxx,
            [*libraries, f"-l:{runtime.name}"],
            archs=chosen,
            identity={"host compiler": cxx.identity},
            warning=toolchain.check_pair(toolkit, cxx),
            memory_per_job=2 << 30,
        )


class _Sim(Target):
    def tools(self, op: Op, archs: str | None) -> Tools:
        unsupported.check_op(op)
        cxx = toolchain.find_cxx()
        flags = ["-DUSE_CUDA", "-DOPFORGE_SIM", "-fvisibility=hidden", *sim_flags(cxx, self.name)]
        # Two thirds of a library are line numbers.
        libraries = ["-ltorch_cpu", "-Wl,--compress-debug-sections=zlib"]
        if self.name == "sim-race":  # the simulator wants to see these, too
            libraries += [f"-Wl,--wrap={name}" for name in _COPIES]
        flags += ["-x", "c++"]  # for a .cu, too
        return Tools(cxx, flags, cxx, libraries, folders=[SIM_INCLUDE_DIR])


CPU = _Cpu("cpu", "cpu", "CPU", "*.cpp")
CUDA = _Cuda("cuda", "cuda", "CUDA", "*.cu", dispatch_key="CUDA")
CPU_COVER = _Cpu("cpu-cover", "cpu", "CPU", "*.cpp", for_users=False, covers=True)
SIM, SIM_RACE, SIM_ASAN = (
    _Sim(name, "sim", "CUDA", "*.cu", for_users=False) for name in ("sim", "sim-race", "sim-asan")
)
SIM_COVER = _Sim("sim-cover", "sim", "CUDA", "*.cu", for_users=False, covers=True)
ALL = {t.name: t for t in (CPU, CUDA, SIM, SIM_RACE, SIM_ASAN, SIM_COVER, CPU_COVER)}
KINDS = ("cpu", "cuda", "sim")
FOR_USERS = tuple(t.name for t in ALL.values() if t.for_users)
COVERAGE = {t.kind: t.name for t in ALL.values() if t.covers}  # by place


def find(name: str) -> Target:
    """The target of a name."""
    if name not in ALL:
        raise RecordError(f"unknown target {name!r}; targets are {', '.join(ALL)}")
    return ALL[name]


def has_sources(op: Op, target: str) -> bool:
    """Whether the op's folder has something to compile for this target."""
    return bool(find(target).sources(op))


def coverage_flags(cxx: Compiler) -> list[str]:
    """The flags for a build that records which code ran."""
    return [*_COVERAGE_FLAGS, narrowing.FLAGS[cxx.family]]


def sim_flags(cxx: Compiler, name: str) -> list[str]:
    """The flags that compile the CUDA sources for one of the simulator's targets."""
    level = toolchain.cpu_level(platform.machine(), cpu_flags())
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
    if name == "sim-race":
        return flags + _race_flags(cxx)
    if name == "sim-asan":
        flags += ["-fsanitize=address", "-fsanitize-recover=address", "-fno-omit-frame-pointer"]
        # Checks by calls: two thirds of the time to compile.
        threshold = "asan-instrumentation-with-call-threshold=0"
        flags += ["-mllvm", f"-{threshold}"] if cxx.family == "clang" else [f"--param={threshold}"]
        return [*flags, "-O1"]
    if name == "sim-cover":
        return flags + coverage_flags(cxx)
    # -O2 would take half as long again to compile and save little in a run.
    return flags + (["-O0"] if settings.debug() else ["-O1"])


def _race_flags(cxx: Compiler) -> list[str]:
    """Flags with which the calls that sanitizers insert go to the simulator's own functions."""
    flags = ["-fsanitize=thread,alignment,signed-integer-overflow", "-O1"]
    if cxx.family == "clang":
        return [*flags, "-mllvm", "-tsan-instrument-func-entry-exit=0"]
    return [
        *flags,
        "--param=tsan-instrument-func-entry-exit=0",
        "-fno-tree-sra",  # it would take vector accesses apart
        # Expanded in place they would come by no callback; see also the linker's flags.
        *(f"-fno-builtin-{name}" for name in _COPIES),
    ]
