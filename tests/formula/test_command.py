# SPDX-License-Identifier: Apache-2.0
"""The command, ``opforge next`` after a change, and ``opforge.fuse``."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

import opforge
from opforge import cli
from opforge.formula.source import FormulaError
from opforge.new.steps import steps

SOFTCAP = """\
import torch
from torch import Tensor


def softcap(x: Tensor, cap: float = 5.0) -> Tensor:
    \"\"\"A soft limit.\"\"\"
    return cap * torch.tanh(x / cap)
"""


@pytest.fixture
def written(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(SOFTCAP)
    command = ["new", "soft_limit", "--from", f"{tmp_path}/mine.py:softcap"]
    done = CliRunner().invoke(cli.app, [*command, "--into", str(tmp_path), "--no-check"])
    assert done.exit_code == 0, done.output
    assert "kernels of soft_limit: elements" in done.output
    assert "assumed x: 4096x1024" in done.output
    return tmp_path / "soft_limit"


def test_the_written_code_reads_as_the_formula(written: Path) -> None:
    kernel = (written / "kernel.cuh").read_text()
    assert "// return cap * torch.tanh(x / cap)\nstruct SoftLimit {\n  double cap;\n" in kernel
    assert "return tanh(x / number<V>(cap)) * number<V>(cap);" in kernel
    assert "Forward reads x and writes y: 4 bytes" in kernel
    op = (written / "op.py").read_text()
    assert "def reference(x: Tensor, cap: float = 5.0) -> Tensor:" in op
    assert "def soft_limit(x: Tensor, cap: float = 5.0) -> Tensor:" in op


def test_next_says_when_the_formula_has_changed(written: Path) -> None:
    assert steps(str(written))[0].state == "done"
    (written.parent / "mine.py").write_text("# moved down\n" + SOFTCAP)
    assert steps(str(written))[0].state == "done"
    (written.parent / "mine.py").write_text(SOFTCAP.replace("tanh", "sin"))
    step = steps(str(written))[0]
    assert step.state == "stale"
    assert "--force" in step.todo


def test_a_folder_with_files_stays_without_force(written: Path) -> None:
    mine = f"{written.parent}/mine.py:softcap"
    command = ["new", "soft_limit", "--from", mine, "--into", str(written.parent), "--no-check"]
    before = (written / "kernel.cuh").read_text()
    (written / "kernel.cuh").write_text(before + "// mine\n")
    done = CliRunner().invoke(cli.app, command)
    assert done.exit_code != 0
    assert (written / "kernel.cuh").read_text().endswith("// mine\n")
    done = CliRunner().invoke(cli.app, [*command, "--force"])
    assert done.exit_code == 0
    assert (written / "kernel.cuh").read_text() == before


def test_options_of_formulas_need_a_formula(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli.app, ["new", "one", "--example", "x: 4", "--into", str(tmp_path)])
    assert "is for formulas" in str(done.exception)


def shrink(x: Tensor, weight: Tensor, amount: float) -> Tensor:
    return torch.sign(x) * torch.relu(torch.abs(x) - amount) * weight


def count(x: Tensor) -> Tensor:
    return torch.cumsum(x, 0)


def test_fuse_runs_the_kernels_of_the_formula_for_any_sizes(cache_dir: Path) -> None:
    fused = opforge.fuse(shrink)
    for shape in ((3, 5), (40, 33), (2, 3, 17)):
        x = torch.randn(shape, requires_grad=True)
        weight = torch.randn(shape[-1], requires_grad=True)
        torch.testing.assert_close(fused(x, weight, 0.3), shrink(x, weight, 0.3))
        got = torch.autograd.grad(fused(x, weight, amount=0.3).sum(), [x, weight])
        wanted = torch.autograd.grad(shrink(x, weight, 0.3).sum(), [x, weight])
        for a, b in zip(got, wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert len(list(cache_dir.rglob("shrink-*/op.py"))) == 1


def test_fuse_takes_a_lambda(cache_dir: Path) -> None:
    soft_cap = opforge.fuse(lambda x, cap: cap * torch.tanh(x / cap))
    x = torch.randn(4, 7)
    torch.testing.assert_close(soft_cap(x, 3.0), 3.0 * torch.tanh(x / 3.0))


def test_fuse_refuses_what_has_no_kernel(cache_dir: Path) -> None:
    with pytest.raises(FormulaError, match="running sums"):
        opforge.fuse(count)(torch.randn(3, 4))
