# SPDX-License-Identifier: Apache-2.0
"""`opforge check` raises no alarm on ops that are unusual, but right."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import PATIENCE
from op_cases import nightly_but

from opforge import testing
from opforge.check import row as rows

FOLDER = Path(__file__).parents[1] / "right_ops"
sys.path.insert(0, str(FOLDER))
import seeds  # noqa: E402

# They take two thirds of a quick check's time, and are for --nightly.
LONG = (
    *("found-cases", "coverage", "many-rows", "long-row", "launch-limits", "steady-memory"),
    "thread-counts",
)


def test_every_op_says_what_is_unusual():
    names = seeds.right_ops()
    assert len(names) >= 12
    for name in names:
        assert ast.get_docstring(ast.parse((FOLDER / name / "op.py").read_text()))


@nightly_but("kahan_sum", of=seeds.right_ops())
@pytest.mark.nightly
def test_no_row_fails_where_the_op_has_kernels(name):
    chosen = [r.name for r in rows.all_rows() if r.name not in LONG]
    report = testing.check(FOLDER / name, on=seeds.places_of(seeds.find(name)), only=chosen)
    (one,) = report.ops
    assert len(one.of("passed")) > 20, one.count()


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", seeds.right_ops())
def test_no_row_fails_anywhere(name, seed):
    testing.check(FOLDER / name, on=["cpu", "sim"], seed=seed)


def test_the_script_knows_every_row_it_names():
    assert not {*seeds.EVERY, *seeds.TENTH} - {r.name for r in rows.all_rows()}
    assert not set(seeds.EVERY) & set(seeds.TENTH)


@pytest.mark.nightly
def test_the_script_counts_what_fails_and_goes_on_where_it_ended(tmp_path):
    out = tmp_path / "results.json"
    wrong = str(Path(__file__).parents[1] / "wrong_ops" / "crashes_when_empty")
    command = [sys.executable, str(FOLDER / "seeds.py"), "--ops", wrong, "--on", "cpu"]
    command += ["--rows", "empty", "own-cases", "--out", str(out)]
    for seed in range(2):
        assert (
            subprocess.run([*command, "--seeds", str(seed + 1)], timeout=PATIENCE).returncode == 1
        )
        entry = json.loads(out.read_text())["ops"][wrong]
        assert [f["seed"] for f in entry["failures"]] == list(range(seed + 1))
        assert "SIGSEGV" in entry["failures"][-1]["text"]
        assert entry["rows"] == {"empty": {"cpu": seed + 1}, "own-cases": {"cpu": seed + 1}}
        assert entry["seeds"] == seed + 1
