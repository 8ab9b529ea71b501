# SPDX-License-Identifier: Apache-2.0
"""Reads resources and instructions from an op's compiled CUDA library, without a GPU."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from opforge.build import cache, compile, load, tools
from opforge.build.generated import HEADER_NAME
from opforge.build.parts import parts_of
from opforge.build.plan import Plan, plan
from opforge.build.targets import CUDA
from opforge.errors import ProfileError
from opforge.op import Op
from opforge.profile import sass
from opforge.profile.sass import Code

_ARCH = "9.0"  # also the architecture of the simulated GPU
_SECONDS = 580
# Names of dtypes in demangled names of kernels, for those with a dtype as template argument.
_CUDA_NAMES = {
    torch.float32: "float",
    torch.float64: "double",
    torch.float16: "__half",
    torch.bfloat16: "__nv_bfloat16",
}


@dataclass(frozen=True)
class Compiled:
    """The kernels of an op as compiled for one architecture."""

    arch: str
    source: str  # the tools that reported it
    codes: list[Code]
    missing: str = ""  # what is not known, and how to fix that

    def of(self, dtype: torch.dtype) -> list[Code]:
        """The kernels for a dtype if template arguments show it, or else all kernels."""
        word = _CUDA_NAMES.get(dtype, "")
        named = {c.name: _words(sass.demangle(c.name)) for c in self.codes}
        if not word or not any(word in words for words in named.values()):
            return self.codes
        others = set(_CUDA_NAMES.values()) - {word}
        return [c for c in self.codes if word in named[c.name] or not others & set(named[c.name])]


def inspect(op: Op) -> Compiled:
    """The op's kernels, read with cuobjdump if it is installed, or else compiled again."""
    dump = tools.find("cuobjdump")
    return _compile(op) if dump is None else _dump(op, dump)


def _dump(op: Op, program: str) -> Compiled:
    codes: dict[str, Code] = {}
    arch = missing = ""
    for library in _libraries(op):
        archs = [a for a in library.manifest["archs"] if not a.endswith("+PTX")]
        if not archs:
            raise ProfileError(f"{library.path} has PTX only; build it with --arch {_ARCH}")
        arch = _ARCH if _ARCH in archs else archs[-1]
        only = ["--gpu-architecture", f"sm_{arch.replace('.', '')}", str(library.path)]
        found = sass.resources(_run([program, "--dump-resource-usage", *only]))
        if not sass.count(_run([program, "--dump-sass", *only]), found):
            remedy = tools.REMEDY["nvdisasm"]
            missing = f"no instruction counts: cuobjdump needs nvdisasm ({remedy})"
        codes |= found
    return Compiled(arch, "cuobjdump", list(codes.values()), missing)


def _libraries(op: Op) -> list[cache.Library]:
    """The libraries that have the op's kernels: those that are ready, or built now."""
    names = parts_of(op, CUDA).with_kernels
    ready = [load.find_ready(op, CUDA.name, name) for name in names]
    if None in ready:
        return compile.build([plan(op, CUDA.name, _ARCH, name) for name in names])
    return [library for library in ready if library is not None]


def _compile(op: Op) -> Compiled:
    """Compile with a report of ptxas. It takes a minute, where cuobjdump takes a second."""
    codes: dict[str, Code] = {}
    disassembler = tools.find("nvdisasm")
    with tempfile.TemporaryDirectory(prefix="opforge-profile-") as folder:
        for name in parts_of(op, CUDA).with_kernels:
            planned = plan(op, CUDA.name, _ARCH, name)
            (Path(folder) / HEADER_NAME).write_text(planned.signature)
            for source in planned.sources:
                cubin = Path(folder) / f"{source.stem}.cubin"
                codes |= sass.ptxas(_report(planned, source, cubin))
                if disassembler is not None:
                    sass.count(_run([disassembler, str(cubin)]), codes)
    missing = ""
    if disassembler is None:
        missing = f"no instruction counts: {tools.REMEDY['cuobjdump']}"
    return Compiled(_ARCH, "ptxas", list(codes.values()), missing)


def _report(planned: Plan, source: Path, cubin: Path) -> str:
    command = [w for w in planned.compile if w != "-c"]
    command += ["-cubin", "-Xptxas", "-v", "-o", str(cubin), str(source)]
    return _run(command, folder=cubin.parent)


def _run(command: Sequence[str], folder: Path | None = None) -> str:
    """The output of a program on both streams, because ptxas reports on standard error."""
    done = subprocess.run(
        command, capture_output=True, text=True, errors="replace", cwd=folder, timeout=_SECONDS
    )
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip().splitlines()
        raise ProfileError(f"{command[0]} failed: {' '.join(words[:3]) or 'it printed nothing'}")
    return done.stdout + done.stderr


def _words(name: str) -> tuple[str, ...]:
    separators = str.maketrans(dict.fromkeys("<>,()*& ", " "))
    return tuple(name.translate(separators).split())
