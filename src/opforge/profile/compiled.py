# SPDX-License-Identifier: Apache-2.0
"""What the compiled CUDA library of an op tells without a GPU: resources and instructions."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from opforge.build import compile, load, tools
from opforge.build.plan import Plan, plan
from opforge.build.signature import HEADER_NAME
from opforge.errors import ProfileError
from opforge.op import Op
from opforge.profile import sass
from opforge.profile.sass import Code

_ARCH = "9.0"  # what the simulator pretends to be, too
_SECONDS = 580
# How a demangled name spells the dtypes, for kernels that have them as template arguments.
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
    source: str  # which tools told
    codes: list[Code]
    missing: str = ""  # what is not known, and the remedy

    def of(self, dtype: torch.dtype) -> list[Code]:
        """The kernels for a dtype where their template arguments tell it, else all."""
        word = _CUDA_NAMES.get(dtype, "")
        named = {c.name: _words(sass.demangle(c.name)) for c in self.codes}
        if not word or not any(word in words for words in named.values()):
            return self.codes
        others = set(_CUDA_NAMES.values()) - {word}
        return [c for c in self.codes if word in named[c.name] or not others & set(named[c.name])]


def inspect(op: Op) -> Compiled:
    """The op's kernels, from its library if there is a cuobjdump, else compiled once more."""
    dump = tools.find("cuobjdump")
    return _compile(op) if dump is None else _dump(op, dump)


def _dump(op: Op, program: str) -> Compiled:
    library = load.find_ready(op, "cuda") or compile.build([plan(op, "cuda", _ARCH)])[0]
    archs = [a for a in library.manifest["archs"] if not a.endswith("+PTX")]
    if not archs:
        raise ProfileError(f"{library.path} has PTX only; build it with --arch {_ARCH}")
    arch = _ARCH if _ARCH in archs else archs[-1]
    only = ["--gpu-architecture", f"sm_{arch.replace('.', '')}", str(library.path)]
    codes = sass.resources(_run([program, "--dump-resource-usage", *only]))
    missing = ""
    if not sass.count(_run([program, "--dump-sass", *only]), codes):
        missing = f"no instruction counts: cuobjdump needs nvdisasm ({tools.REMEDY['nvdisasm']})"
    return Compiled(arch, "cuobjdump", list(codes.values()), missing)


def _compile(op: Op) -> Compiled:
    """ptxas reports what it does while compiling; a minute where cuobjdump takes a second."""
    planned = plan(op, "cuda", _ARCH)
    codes: dict[str, Code] = {}
    disassembler = tools.find("nvdisasm")
    with tempfile.TemporaryDirectory(prefix="opforge-profile-") as folder:
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
    """What a program prints; both streams, for ptxas reports on the second."""
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
