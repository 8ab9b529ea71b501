# SPDX-License-Identifier: Apache-2.0
"""The extension of examples/classic works, and differs from an op as docs/classic.md says."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from importlib import util
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import PATIENCE, foreign_torch_symbols, undefined_symbols
from torch.utils import cpp_extension

import opforge
from opforge import discover
from opforge.build import load

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "classic"
PAGE = (ROOT / "docs" / "classic.md").read_text()
OP = discover.BUILTIN_FOLDER / "scale_bias_relu"

nightly = pytest.mark.nightly


def included() -> list[str]:
    folders = [*cpp_extension.include_paths(), sysconfig.get_paths()["include"]]
    return [f"-I{folder}" for folder in folders]


def test_the_source_compiles() -> None:
    """Checked only, which is quicker; the module is built at night."""
    command = ["g++", "-std=c++20", "-fsyntax-only", "-DTORCH_EXTENSION_NAME=classic"]
    source = str(EXAMPLE / "scale_bias_relu.cpp")
    subprocess.run([*command, *included(), source], check=True, timeout=PATIENCE)


def test_the_lines_are_counted_right() -> None:
    def lines(*files: Path) -> int:
        return sum(bool(line.strip()) for f in files for line in f.read_text().splitlines())

    sources = (EXAMPLE / f for f in ("setup.py", "scale_bias_relu.cpp", "scale_bias_relu.cu"))
    ours = (OP / f for f in ("op.py", "check.h", "cpu.cpp", "cuda.cu", "kernel.cuh"))
    (row,) = re.findall(r"^\| Lines.* (\d+) in 3 files.* (\d+) in 5 files", PAGE, re.MULTILINE)
    assert tuple(map(int, row)) == (lines(*sources), lines(*ours))


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The module, built by its setup.py as a user builds it."""
    place = tmp_path_factory.mktemp("classic")
    shutil.copytree(EXAMPLE, place, dirs_exist_ok=True)
    command = [sys.executable, "setup.py", "build_ext", "--inplace"]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    (library,) = place.glob("classic_scale_bias_relu.*.so")
    spec = util.spec_from_file_location("classic_scale_bias_relu", library)
    assert spec is not None
    assert spec.loader is not None
    made = util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def tensors(**options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(5, 4, **options), torch.randn(4, **options)


def leaves() -> tuple[torch.Tensor, torch.Tensor]:
    return tensors(dtype=torch.float64, requires_grad=True)


@nightly
def test_it_computes_what_the_op_computes(module: Any) -> None:
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        x, bias = tensors(dtype=dtype)
        y = module.scale_bias_relu(x, bias, 0.5)
        torch.testing.assert_close(y, opforge.scale_bias_relu(x, bias, 0.5))
    assert torch.autograd.gradcheck(lambda *a: module.scale_bias_relu(*a, 0.5), leaves())
    with pytest.raises(RuntimeError, match="bias must have one value per column of x"):
        module.scale_bias_relu(x, bias[:2])


@nightly
def test_its_library_is_for_one_python_and_one_torch(module: Any) -> None:
    library = Path(module.__file__)
    assert sys.implementation.cache_tag in library.name  # cpython-311
    assert foreign_torch_symbols(library) != set()
    assert any(name.startswith("Py") for name in undefined_symbols(library))
    ours = load.find(discover.find("scale_bias_relu"), "cpu").path
    assert foreign_torch_symbols(ours) == set()
    assert not any(name.startswith("Py") for name in undefined_symbols(ours))


def compiled(run: Callable[..., Any]) -> Any:
    return torch.compile(lambda *a: run(*a, 0.5), fullgraph=True, backend="aot_eager")(*leaves())


def exported(run: Callable[..., Any]) -> Any:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
            return run(x, bias, 0.5)

    return torch.export.export(Model(), tensors())


def batched(run: Callable[..., Any]) -> Any:
    x, bias = tensors()
    return torch.func.vmap(lambda row: run(row, bias, 0.5))(x[:, None])


def differentiated(run: Callable[..., Any]) -> Any:
    x, bias = tensors()
    return torch.func.grad(lambda t: run(t, bias, 0.5).sum())(x)


def differentiated_twice(run: Callable[..., Any]) -> Any:
    return torch.autograd.gradgradcheck(lambda *a: run(*a, 0.5), leaves())


def on_meta(run: Callable[..., Any]) -> Any:
    return run(*tensors(device="meta"), 0.5)


def autocast(run: Callable[..., Any]) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        return run(torch.nn.functional.linear(*[torch.randn(4, 4)] * 2), torch.randn(4), 0.5)


@nightly
@pytest.mark.parametrize(
    ("row", "attempt", "said"),
    [
        ("`torch.compile`", compiled, "Attempted to call function marked as skipped"),
        ("`torch.export`", exported, "its data is not allocated yet"),
        ("`vmap`", batched, "cannot use C.. torch::autograd::Function with functorch"),
        ("`torch.func.grad`", differentiated, "cannot use C.. torch::autograd::Function"),
        ("Double backward", differentiated_twice, "Numerical gradient .* expected to be zero"),
        ("Meta tensors", on_meta, "built without CUDA"),
        ("Autocast", autocast, "x and bias differ in dtype"),
    ],
)
def test_what_works_for_an_op_alone(
    row: str, attempt: Callable[..., Any], said: str, module: Any
) -> None:
    assert re.search(rf"^\| {re.escape(row)}", PAGE, re.MULTILINE)
    assert attempt(opforge.scale_bias_relu) is not None
    with pytest.raises((RuntimeError, torch._dynamo.exc.Unsupported), match=said):
        attempt(module.scale_bias_relu)


@nightly
@pytest.mark.skipif(not shutil.which("nvcc"), reason="needs nvcc")
def test_nvcc_compiles_the_kernels(tmp_path: Path) -> None:
    # A torch without CUDA has all headers but this one, which its build generates.
    absent = tmp_path / "c10" / "cuda" / "impl" / "cuda_cmake_macros.h"
    absent.parent.mkdir(parents=True)
    absent.write_text("#define C10_CUDA_BUILD_SHARED_LIBS\n")
    flags = [*cpp_extension.COMMON_NVCC_FLAGS, "-std=c++20", *included(), f"-I{tmp_path}"]
    flags += ["-gencode=arch=compute_90,code=sm_90", "-c", "-o", str(tmp_path / "object.o")]
    source = str(EXAMPLE / "scale_bias_relu.cu")
    subprocess.run(["nvcc", *flags, source], check=True, timeout=PATIENCE)
