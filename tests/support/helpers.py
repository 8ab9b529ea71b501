# SPDX-License-Identifier: Apache-2.0
"""Op folders, stub compilers and child processes for the tests of the builder."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from opforge import discover
from opforge.build import plan as plans
from opforge.truth import compare

REAL_CXX = shutil.which("g++") or "g++"
NOBODY = 65534
# Seconds for what takes a few: a child process that hangs is ended, one on a busy machine is not.
PATIENCE = 600

OP_PY = """\
import torch
from opforge import Op

op = Op(
    schema="{name}(Tensor x) -> Tensor y",
    reference=lambda x: {factor} * x,
    dtypes=(torch.float32, torch.float64),
)
"""

# Multiplies by a factor; contiguous float32 and float64 only.
CPU_CPP = """\
#include <opforge/host.h>

using opforge::Tensor;

template <class T>
static void scale(const Tensor& x, const Tensor& y) {{
  for (int64_t i = 0; i < x.numel(); ++i)
    opforge::mutable_data<T>(y)[i] = {factor} * opforge::data<T>(x)[i];
}}

static Tensor times(const Tensor& x) {{
  OPFORGE_CHECK(x.is_contiguous(), "x must be contiguous");
  Tensor y = opforge::empty(opforge::sizes(x), x);
  if (opforge::dtype_of(x) == opforge::DType::f32)
    scale<float>(x, y);
  else
    scale<double>(x, y);
  return y;
}}

OPFORGE_IMPL({name}, times)
"""

CUDA_CU = """\
#include <opforge/host.h>

using opforge::Tensor;

__global__ void scale(const float* x, float* y, int64_t n) {{
  const int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (i < n) y[i] = {factor} * x[i];
}}

static Tensor times(const Tensor& x) {{
  OPFORGE_CHECK(x.is_contiguous(), "x must be contiguous");
  opforge::DeviceGuard guard(x.get_device_index());
  Tensor y = opforge::empty(opforge::sizes(x), x);
  const int64_t n = x.numel();
  if (n > 0)
    scale<<<unsigned((n + 255) / 256), 256, 0, opforge::current_stream(x)>>>(
        opforge::data<float>(x), opforge::mutable_data<float>(y), n);
  return y;
}}

OPFORGE_IMPL({name}, times)
"""


def write_op(
    folder: Path,
    name: str = "times",
    factor: int = 2,
    op_py: str | None = None,
    cpp: str | None = "// nothing\n",
    cu: str | None = None,
) -> Path:
    """An op folder. ``cpp`` or ``cu`` None leaves that file out; "kernel" is one that works."""
    folder.mkdir(parents=True, exist_ok=True)
    text = OP_PY if op_py is None else textwrap.dedent(op_py)
    (folder / "op.py").write_text(
        text.format(name=name, factor=factor) if op_py is None else text, encoding="utf-8"
    )
    for file, source, kernel in (("cpu.cpp", cpp, CPU_CPP), ("cuda.cu", cu, CUDA_CU)):
        if source == "kernel":
            source = kernel.format(name=name, factor=factor)
        (folder / file).unlink(missing_ok=True)
        if source is not None:
            (folder / file).write_text(textwrap.dedent(source))
    return folder


def planned(folder: Path, target: str = "cpu", archs: str | None = None) -> plans.Plan:
    """The plan of the op in a folder."""
    return plans.plan(discover.load_folder(folder).op, target, archs)


def has_kernel(folder: Path, target: str = "CPU") -> bool:
    """Whether torch has a compiled kernel of the op in a folder."""
    op = discover.load_folder(folder).op
    return torch._C._dispatch_has_kernel_for_dispatch_key(f"{op.namespace}::{op.name}", target)


@dataclass(frozen=True)
class Stub:
    """A stand-in for a compiler; it records how it is called."""

    path: Path
    log: Path

    @property
    def calls(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    @property
    def compiles(self) -> int:
        """How often it compiled a source of an op; not the generated one."""
        sources = [call for call in self.calls if "opforge_registration.cpp" not in call]
        return sum(" -c " in f" {call} " for call in sources)


def write_stub(
    path: Path,
    version: str,
    on_compile: str = 'touch "$out"',
    on_link: str = f'{REAL_CXX} -shared -o "$out" -x c /dev/null',
) -> Stub:
    """A shell script that answers --version, and compiles and links as told (``$out`` is -o)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    log = path.with_name(path.name + ".log")
    script = f"""\
        #!/bin/sh
        case " $* " in
          *" --version "*) /bin/cat '{path}.version'; exit 0;;
          *" --dryrun "*) exit 1;;
        esac
        echo "$*" >> '{log}'
        step=link
        all="$*"
        for argument in "$@"; do
          [ "$previous" = -o ] && out=$argument
          [ "$argument" = -c ] && step=compile
          previous=$argument
        done
        if [ $step = compile ]; then
          :; {on_compile}
        else
          :; {on_link}
        fi
        """
    Path(f"{path}.version").write_text(version + "\n")
    path.write_text(textwrap.dedent(script))
    path.chmod(0o755)
    return Stub(path, log)


def stub_cxx(folder: Path, version: str = "12.2.0", **steps: str) -> Stub:
    """A stub g++; by default it makes empty libraries, in no time."""
    return write_stub(folder / "g++", f"g++ (Stub 1.0-3) {version}", **steps)


def recording_cxx(folder: Path) -> Stub:
    """The real g++, recorded."""
    real = f'exec {REAL_CXX} "$@"'
    return write_stub(folder / "g++", "g++ (Stub) 12.2.0", on_compile=real, on_link=real)


def stub_nvcc(home: Path, release: str = "13.0") -> Stub:
    """A CUDA toolkit at ``home`` whose nvcc makes empty objects."""
    (home / "lib64").mkdir(parents=True, exist_ok=True)
    runtime = home / "lib64" / f"libcudart.so.{release.split('.')[0]}"
    runtime.touch()
    said = f"nvcc: NVIDIA (R) Cuda compiler driver\nCuda compilation tools, release {release}, "
    return write_stub(home / "bin" / "nvcc", f"{said}V{release}.88")


def python(
    code: str, *args: object, environment: dict[str, str] | None = None, **options: object
) -> subprocess.CompletedProcess[str]:
    """Run Python code in a child process that must succeed."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, args)],
        capture_output=True,
        text=True,
        env={**os.environ, **(environment or {})},
        timeout=PATIENCE,
        **options,  # type: ignore[call-overload]
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def temporary_files(cache_dir: Path) -> list[Path]:
    """Whatever an unfinished build left in a cache."""
    known = {"libs", "locks", "logs", "history", "toolchain.json"}
    found = [p for p in cache_dir.iterdir() if p.name not in known]
    found += (cache_dir / "libs").glob(".*")
    found += (cache_dir / "locks").glob("*.holder")
    return found


# --- the symbols a library may import -------------------------------------------------------------


def shim_functions(newest: tuple[int, int]) -> set[str]:
    """The functions of torch's C shim up to a version, by the headers of the torch installed."""
    include = Path(torch.__file__).parent / "include/torch/csrc"
    found: set[str] = set()
    for header in ("stable/c/shim.h", "inductor/aoti_torch/c/shim.h"):
        text = _up_to(newest, (include / header).read_text())
        found |= set(re.findall(r"\b((?:aoti_)?torch_\w+)\s*\(", text))
        # aoti_torch declares a function per dtype and device through macros of its own
        found |= set(re.findall(r"\b(aoti_torch_\w+)\b", text))
    return found


def _up_to(newest: tuple[int, int], text: str) -> str:
    """A header without the sections for versions after ``newest``."""
    kept: list[str] = []
    open_sections: list[bool] = []  # whether each #if around us is one to leave out
    for line in text.splitlines():
        if match := re.match(r"\s*#\s*if(.*)", line):
            version = re.search(r"TORCH_FEATURE_VERSION >= TORCH_VERSION_(\d+)_(\d+)", match[1])
            too_new = version is not None and (int(version[1]), int(version[2])) > newest
            open_sections.append(too_new)
        elif re.match(r"\s*#\s*endif", line):
            open_sections.pop()
        elif not any(open_sections):
            kept.append(line)
    return "\n".join(kept)


def undefined_symbols(library: Path) -> set[str]:
    """What a library expects from others, without symbol versions."""
    done = subprocess.run(
        ["nm", "-D", "--undefined-only", str(library)], capture_output=True, text=True, check=True
    )
    return {line.split()[-1].split("@")[0] for line in done.stdout.splitlines()}


def foreign_torch_symbols(library: Path, newest: tuple[int, int] = plans.ABI) -> set[str]:
    """Symbols of torch that a library uses and the stable shim of ``newest`` does not have."""
    symbols = undefined_symbols(library)
    mangled = {s for s in symbols if re.match(r"_Z\w*?(2at|3c10|5torch)\d", s)}
    c_symbols = {s for s in symbols if re.match(r"(aoti_)?torch_", s)}
    return mangled | (c_symbols - shim_functions(newest))


def load_record(folder: Path, text: str) -> Any:
    """The op of an ``op.py`` that begins with the usual imports."""
    (folder / "op.py").write_text("import torch\nfrom opforge import Op\n" + textwrap.dedent(text))
    return discover.load(folder)


def compared(got, torchs=None, truth=None, spread=0.0, narrow=0.0, **options):
    """``spread`` is that of roundings, ``narrow`` that of 16-bit ones."""
    if torchs is None:
        torchs = got if truth is None else truth.to(got.dtype)
    truth = torchs.double() if truth is None else truth

    def spreads(samples, short):
        if short and got.element_size() > 2:
            return None
        return torch.full(truth.shape, narrow if short else spread, dtype=torch.float64)

    return compare.check(got, torchs, truth, spreads, **options)
