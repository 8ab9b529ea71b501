# SPDX-License-Identifier: Apache-2.0
"""The types that editors and mypy see of ``import opforge``."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import opforge
from opforge import discover
from opforge.registration import stubs

RIGHT = """\
import opforge
import torch
from torch import Tensor

x, weight, labels = torch.ones(2, 8), torch.ones(8), torch.zeros(2, dtype=torch.int64)
y: Tensor = opforge.rms_norm(x, weight, eps=1e-5, dropout="after", p=0.1)
pair: tuple[Tensor, Tensor] = opforge.rms_norm(x, weight, x)
by_name: tuple[Tensor, Tensor] = opforge.layer_norm(x, residual=x)
loss: Tensor = opforge.cross_entropy(x, labels, reduction="sum")
total: Tensor = opforge.reduce_sum(opforge.swiglu(x), dim=[0, 1])
turned: tuple[Tensor, Tensor | None] = opforge.rope(x, None, x, x)
norm: torch.nn.Module = opforge.nn.RMSNorm(8)
version: str = opforge.__version__
op = opforge.Op(schema="f(Tensor x) -> Tensor y", reference=torch.relu)
mine = opforge.load("folder")(x)
watched = opforge.load("folder", watch=True)(x)
typed = opforge.inline("f(Tensor x) -> Tensor y", torch.relu, elementwise="y = x")(x)
with opforge.nvtx(), opforge.launch_config("relu", block=128), opforge.sim.active():
    opforge.relu(x)
opforge.testing.check("relu")


def either(residual: Tensor | None) -> Tensor | tuple[Tensor, Tensor]:
    return opforge.rms_norm(x, weight, residual)
"""

WRONG = {
    'opforge.rms_norm("x")': "call-overload",
    'opforge.relu("x")': "arg-type",
    "opforge.softmax(x, causual=True)": "call-arg",
    'opforge.cross_entropy(x, x, reduction="most")': "arg-type",
    'opforge.layer_norm(x, relu="beside")': "call-overload",
    "opforge.no_such_op(x)": "attr-defined",
    "(opforge.rms_norm(x, x, x)).sum()": "attr-defined",
}


def test_the_stub_is_as_the_ops_are() -> None:
    current = stubs.FILE.read_text(encoding="utf-8") == stubs.text()
    assert current, f"an op has changed: run {stubs.COMMAND}"


def test_the_stub_has_every_public_name() -> None:
    text = stubs.FILE.read_text(encoding="utf-8")
    for name in set(dir(opforge)) & {*discover.builtin_names(), *opforge._LAZY, *opforge._MODULES}:
        assert re.search(rf"^(def {name}\(|from \S+ import {name} as {name}$)", text, re.M), name


def test_aliases_are_written_out_and_a_result_follows_the_residual() -> None:
    text = stubs.FILE.read_text(encoding="utf-8")
    assert 'dropout: Literal["before", "after"] | None = None,' in text
    assert text.count("def rms_norm(") == 3
    summary = inspect.getdoc(opforge.swiglu)
    assert f'"""{summary}"""' in text


@pytest.mark.nightly
def test_mypy_takes_right_calls_and_refuses_wrong_ones(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    first = RIGHT.count("\n") + 1
    program.write_text(RIGHT + "".join(f"{call}\n" for call in WRONG))
    # Run beside it, so that the settings in pyproject.toml do not count.
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", program.name],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={"MYPYPATH": str(stubs.FILE.parents[1]), "PATH": "/usr/bin:/bin"},
    )
    found = re.findall(r"^program\.py:(\d+): error: .*\[(\S+)\]$", done.stdout, re.M)
    expected = [(str(first + i), code) for i, code in enumerate(WRONG.values())]
    assert found == expected, done.stdout + done.stderr
