# SPDX-License-Identifier: Apache-2.0
"""The targets a library is built for: which sources, by which compiler, with which flags.

Users get ``cpu`` and ``cuda``. The others serve checks alone: the CUDA sources compiled for the
CPU (``sim``), plain, with callbacks at every access (``sim-race``), with AddressSanitizer
(``sim-asan``); and builds that tell which code ran (``sim-cover``, ``cpu-cover``).
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch

from opforge import settings
from opforge.build import arch, narrowing, toolchain, unsupported
from opforge.build.cpu import cpu_flags
from opforge.build.toolchain import Compiler
from opforge.errors import RecordError, ToolchainError
from opforge.op import CPU_KIND, CUDA_KIND, SIM_KIND, Op, files_of

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
    stub: str = ""  # a library that may be missing here, and is linked as an empty one
    folders: list[Path] = field(default_factory=list)  # headers that come before opforge's own
    archs: tuple[str, ...] = ()
    cpu_flags: tuple[str, ...] = ()  # what the CPU must have to run it
    identity: dict[str, str] = field(default_factory=dict)  # more for the key
    warning: str | None = None
    memory_per_job: int = 1 << 30


@dataclass(frozen=True)
class Target:
    """One target. A class is a kind, as a record calls it: cpu, cuda or sim.

    The modes of a kind are those of ``opforge.sim.active``; the CPU has only "plain" and "cover".
    """

    kind: ClassVar[str]
    language: ClassVar[str]  # in messages
    pattern: ClassVar[str]  # of source files
    device: ClassVar[str] = "cpu"  # of the tensors that its kernels take
    simulated: ClassVar[bool] = False  # it needs the simulator's runtime
    falls_back: ClassVar[bool] = False  # where there is no library, the reference serves

    mode: str = "plain"

    @property
    def name(self) -> str:
        """Its name on command lines, in files and in messages."""
        return self.kind if self.mode == "plain" else f"{self.kind}-{self.mode}"

    @property
    def for_users(self) -> bool:
        """Whether calls of users run it. What checks alone run has a namespace of its own."""
        return self.mode == "plain" and not self.simulated

    @property
    def covers(self) -> bool:
        """Whether it tells which code ran."""
        return self.mode == "cover"

    @property
    def dispatch_key(self) -> str:
        """The key that torch dispatches to its kernels by."""
        return self.device.upper()

    def sources(self, op: Op) -> tuple[Path, ...]:
        """The op's source files for this target, also those in subfolders."""
        return tuple(files_of(op.folder, self.pattern)) if op.folder is not None else ()

    def namespace(self, op: Op) -> str:
        """``torch.ops.<namespace>`` of the op as built for this target."""
        return op.namespace if self.for_users else f"{op.namespace}_{self.name.replace('-', '_')}"

    def tools(self, op: Op, archs: str | None) -> Tools:
        """The compiler and its flags on this machine; raises where something is missing."""
        raise NotImplementedError

    def turned_off(self) -> str:
        """The reason why its kernels must not be used, or ""."""
        return ""

    def available(self) -> bool:
        """Whether to build it here unasked. Raises ToolchainError if its toolkit is missing."""
        return self.for_users

    def is_capturing(self) -> bool:
        """Whether a graph is being captured, so that no library can be loaded."""
        return False

    def misfit(self, facts: Mapping[str, Any]) -> str:
        """The reason why this machine cannot run a library with this manifest, or ""."""
        return ""

    def why_untried(self) -> str:
        """The reason why a new library is not loaded once to try it, or ""."""
        return "" if self.for_users else "not tried: it needs the simulator or a recorder around it"


class _Cpu(Target):
    kind, language, pattern = CPU_KIND, "CPU", "*.cpp"
    falls_back = True

    def tools(self, op: Op, archs: str | None) -> Tools:
        cxx = toolchain.find_cxx()
        level = toolchain.cpu_level(platform.machine(), cpu_flags())
        flags = ["-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", *level]
        if self.covers:
            flags += _coverage_flags(cxx)
        else:
            flags += ["-g", "-O0"] if settings.debug() else ["-O2", "-DNDEBUG"]
        needed = ("avx2", "fma", "f16c", "bmi2") if level else ()
        return Tools(cxx, flags, cxx, ["-ltorch_cpu"], cpu_flags=needed)


class _Cuda(Target):
    kind, language, pattern = CUDA_KIND, "CUDA", "*.cu"
    device = "cuda"

    def tools(self, op: Op, archs: str | None) -> Tools:
        if reason := self.turned_off():
            raise ToolchainError(reason)
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
            stub="libtorch_cuda.so",
            archs=chosen,
            identity={"host compiler": cxx.identity},
            warning=toolchain.check_pair(toolkit, cxx),
            memory_per_job=2 << 30,
        )

    def turned_off(self) -> str:
        return "" if settings.cuda_enabled() else "CUDA is turned off by USE_CUDA=0"

    def available(self) -> bool:
        return settings.cuda_enabled() and bool(toolchain.find_cuda())

    def is_capturing(self) -> bool:
        return torch.version.cuda is not None and torch.cuda.is_current_stream_capturing()

    def misfit(self, facts: Mapping[str, Any]) -> str:
        if torch.version.cuda is None or not torch.cuda.is_available():
            return ""
        capability = torch.cuda.get_device_capability()
        if arch.covers(tuple(facts["archs"]), capability):
            return ""
        gpu = f"{capability[0]}.{capability[1]}"
        return (
            f"is built for {', '.join(facts['archs'])}, but the GPU is {gpu}; rebuild it with "
            f"`opforge build {facts['op']} --cuda --arch {gpu}`"
        )

    def why_untried(self) -> str:
        return "" if torch.version.cuda is not None else "not tried: this torch has no CUDA"


class _Sim(Target):
    """The CUDA sources compiled for the CPU, for the simulator. Other modes are subclasses."""

    kind, language, pattern = SIM_KIND, "CUDA", "*.cu"
    simulated = True
    libraries: ClassVar[tuple[str, ...]] = ()  # more for the linker

    def tools(self, op: Op, archs: str | None) -> Tools:
        unsupported.check_op(op)
        cxx = toolchain.find_cxx()
        flags = ["-DUSE_CUDA", "-DOPFORGE_SIM", "-fvisibility=hidden"]
        flags += [*_sim_flags(), *self.mode_flags(cxx)]
        # Two thirds of a library are line numbers.
        libraries = ["-ltorch_cpu", "-Wl,--compress-debug-sections=zlib", *self.libraries]
        flags += ["-x", "c++"]  # for a .cu, too
        return Tools(cxx, flags, cxx, libraries, folders=[SIM_INCLUDE_DIR])

    def mode_flags(self, cxx: Compiler) -> list[str]:
        """The flags of this mode: those of the optimiser, and of detectors."""
        # -O2 would take half as long again to compile and save little in a run.
        return ["-O0"] if settings.debug() else ["-O1"]


class _SimRace(_Sim):
    libraries = tuple(f"-Wl,--wrap={name}" for name in _COPIES)  # the simulator sees these, too

    def mode_flags(self, cxx: Compiler) -> list[str]:
        # The calls that sanitizers insert go to the simulator's own functions.
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


class _SimAsan(_Sim):
    def mode_flags(self, cxx: Compiler) -> list[str]:
        flags = ["-fsanitize=address", "-fsanitize-recover=address", "-fno-omit-frame-pointer"]
        # Checks by calls: two thirds of the time to compile.
        threshold = "asan-instrumentation-with-call-threshold=0"
        flags += ["-mllvm", f"-{threshold}"] if cxx.family == "clang" else [f"--param={threshold}"]
        return [*flags, "-O1"]


class _SimCover(_Sim):
    def mode_flags(self, cxx: Compiler) -> list[str]:
        return _coverage_flags(cxx)


CPU, CPU_COVER = _Cpu(), _Cpu("cover")
CUDA = _Cuda()
SIM, SIM_RACE, SIM_ASAN, SIM_COVER = _Sim(), _SimRace("race"), _SimAsan("asan"), _SimCover("cover")
ALL: dict[str, Target] = {
    t.name: t for t in (CPU, CUDA, SIM, SIM_RACE, SIM_ASAN, SIM_COVER, CPU_COVER)
}
FOR_USERS = tuple(t.name for t in ALL.values() if t.for_users)


def find(name: str) -> Target:
    """The target of a name."""
    if name not in ALL:
        raise RecordError(f"unknown target {name!r}; targets are {', '.join(ALL)}")
    return ALL[name]


def modes(kind: str) -> dict[str, Target]:
    """The targets of a kind by their modes."""
    return {t.mode: t for t in ALL.values() if t.kind == kind}


def for_device(device_type: str) -> Target | None:
    """The target whose kernels a call with tensors on such a device runs, or None."""
    return next((t for t in ALL.values() if t.for_users and t.device == device_type), None)


def has_sources(op: Op, target: str) -> bool:
    """Whether the op's folder has something to compile for this target."""
    return bool(find(target).sources(op))


def has_kernels(op: Op, target: str) -> bool:
    """Whether the op runs kernels of this target: its own, or those of ops it is composed of."""
    return op.composed is not None or has_sources(op, target)


def _coverage_flags(cxx: Compiler) -> list[str]:
    """The flags for a build that records which code ran."""
    return [*_COVERAGE_FLAGS, narrowing.FLAGS[cxx.family]]


def _sim_flags() -> list[str]:
    """The flags that compile CUDA sources for the CPU, in every mode."""
    level = toolchain.cpu_level(platform.machine(), cpu_flags())
    return [
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
