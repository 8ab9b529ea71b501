# SPDX-License-Identifier: Apache-2.0
"""Each formula is written with kernels, its files are tidy, and they compute what it does."""

from __future__ import annotations

import inspect
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from formula_suite import FORMULAS, write

import opforge
from opforge import discover
from opforge.build import compile
from opforge.build.plan import plan_all
from opforge.new.folder import write_files
from opforge.op import Make, as_tuple

# Between them: all kinds of kernels, with numbers and broadcast arguments.
BY_DAY = ("norm_relu", "mean_squared")
# One of four by day, from each file.
SOME = [
    n if i % 4 == 0 else pytest.param(n, marks=pytest.mark.nightly) for i, n in enumerate(FORMULAS)
]


@pytest.mark.parametrize("name", SOME)
def test_it_maps_and_the_gradient_is_autograd_s(name: str, tmp_path: Path) -> None:
    made = write(name, tmp_path)
    _is_tidy(made.files)
    assert [f"{what}: {reason}" for what, reason in made.unmapped] == []
    assert len(made.kernels) == 2  # forward and backward
    module = ModuleType(name)
    exec(made.files["op.py"], module.__dict__)
    op = module.op
    compared = 0
    wide = torch.float64 in op.dtypes
    for case in op.cases(Make(torch.float64 if wide else torch.float32)):
        if all(t.numel() for t in case if isinstance(t, torch.Tensor)):
            _compare(op, module.backward_reference, case)
            compared += 1
    assert compared >= 4


def _compare(op: Any, backward: Any, case: tuple[Any, ...]) -> None:
    leaves = [a.detach().requires_grad_() if isinstance(a, torch.Tensor) else a for a in case]
    outputs = as_tuple(op.reference(*leaves))
    incoming = [torch.randn_like(o) for o in outputs]
    tensors = [a for a in leaves if isinstance(a, torch.Tensor)]
    expected = torch.autograd.grad(
        outputs, tensors, incoming, allow_unused=True, materialize_grads=True
    )
    values = dict(zip([a.name for a in op.forward.args], case, strict=True))
    values |= {r.name: o.detach() for r, o in zip(op.forward.returns, outputs, strict=True)}
    values |= {f"grad_{r.name}": g for r, g in zip(op.forward.returns, incoming, strict=True)}
    values |= {
        f"{a.name}_shape": list(v.shape)
        for a, v in zip(op.forward.args, case, strict=True)
        if isinstance(v, torch.Tensor)
    }
    given = {n: values[n] for n in inspect.signature(backward).parameters}
    for wanted, got in zip(expected, as_tuple(backward(**given)), strict=True):
        assert got.shape == wanted.shape
        allowed = 1e-9 if got.dtype == torch.float64 else 1e-3
        torch.testing.assert_close(got, wanted, rtol=allowed, atol=allowed, equal_nan=True)


def _is_tidy(files: dict[str, str]) -> None:
    most = {"op.py": 160, "kernel.cuh": 300, "host.h": 100, "cuda.cu": 20, "cpu.cpp": 20}
    assert set(most) < set(files)
    for file, text in files.items():
        lines = text.split("\n")
        assert len(lines) <= most.get(file, 60), file
        wide = [x for x in lines if len(x) > 100 and not x.startswith("# From ")]
        assert file == "README.md" or not wide, file
        assert not any(line != line.rstrip() for line in lines), file


def _agrees(op: Any, dtype: torch.dtype) -> None:
    """Forward and backward of the kernels against the reference in float64."""
    allowed = {torch.float32: 1e-4, torch.float64: 1e-9, torch.bfloat16: 4e-2}[dtype]
    for case in op.cases(Make(dtype)):
        if not all(t.numel() for t in case if isinstance(t, torch.Tensor)):
            continue
        found = []
        for kind, function in ((dtype, op), (torch.float64, op.reference)):
            leaves = [
                a.detach().to(kind).requires_grad_() if isinstance(a, torch.Tensor) else a
                for a in case
            ]
            outputs = as_tuple(function(*leaves))
            torch.autograd.backward([o.sum() for o in outputs])
            grads = [a.grad for a in leaves if isinstance(a, torch.Tensor)]
            found.append([*outputs, *grads])
        for got, wanted in zip(*found, strict=True):
            scale = max(1.0, float(wanted.detach().abs().max()))
            torch.testing.assert_close(
                got.double(), wanted, rtol=allowed, atol=allowed * scale, equal_nan=True
            )


@pytest.mark.parametrize("name", BY_DAY)
def test_the_kernels_agree_with_it(name: str, tmp_path: Path) -> None:
    write_files(tmp_path / name, write(name, tmp_path).files)
    op = opforge.load(tmp_path / name).__globals__["op"]
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        _agrees(op, dtype)


@pytest.mark.skipif(not shutil.which("nvcc"), reason="needs nvcc")
@pytest.mark.parametrize(
    "name", [n if n in BY_DAY[:1] else pytest.param(n, marks=pytest.mark.nightly) for n in FORMULAS]
)
def test_nvcc_compiles_it(name: str, tmp_path: Path) -> None:
    write_files(tmp_path / name, write(name, tmp_path).files)
    plans = plan_all(discover.load_folder(tmp_path / name).op, "cuda", "9.0")
    assert len(compile.build(plans)) == len(plans)


@pytest.mark.nightly
@pytest.mark.parametrize("place", ["cpu", "sim"])
@pytest.mark.parametrize("name", FORMULAS)
def test_the_written_op_passes_the_quick_check(name: str, place: str, tmp_path: Path) -> None:
    write_files(tmp_path / name, write(name, tmp_path).files)
    command = [sys.executable, "-m", "opforge", "check", str(tmp_path / name), "--on", place]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
