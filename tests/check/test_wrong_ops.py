# SPDX-License-Identifier: Apache-2.0
"""`opforge check` rejects every wrong op on the row that names its fault.

At night each op is checked as a user would, in processes, and the program that comes with the
failure is run. By day some are checked in this process: for every row the first wrong op that is
Python alone, and one that is compiled for every module of rows that has none of those.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers import PATIENCE

from opforge import discover, testing
from opforge.check import results, worker
from opforge.check.place import Place
from opforge.check.row import Trial, find

FOLDER = Path(__file__).parents[1] / "wrong_ops"
sys.path.insert(0, str(FOLDER))
from expected import EXPECTED  # noqa: E402

# What these rows find ends the process, and that would be this one.
ENDING = ("guard-pages", "far-apart", "empty", "label-out-of-range")


def by_day() -> list[str]:
    rows: dict[str, str] = {}
    for name, fault in EXPECTED.items():
        if not [*FOLDER.glob(f"{name}/*.c*")]:
            rows.setdefault(fault.row, name)
    modules = {module_of(row): name for row, name in rows.items()}
    for name, fault in EXPECTED.items():
        if fault.place == "cpu" and fault.row not in ENDING:
            modules.setdefault(module_of(fault.row), name)
    return list(dict.fromkeys([*rows.values(), *modules.values()]))


def module_of(row: str) -> str:
    (found,) = find([row])
    return found.run.__module__


def test_every_wrong_op_is_in_the_table():
    assert sorted(p.parent.name for p in FOLDER.glob("*/op.py")) == sorted(EXPECTED)
    assert len(EXPECTED) >= 25


@pytest.mark.nightly
@pytest.mark.parametrize("name", EXPECTED)
def test_the_row_that_names_the_fault_rejects_it(name):
    fault = EXPECTED[name]
    with pytest.raises(testing.CheckFailed) as failure:
        testing.check(FOLDER / name, on=[fault.place], only=[fault.row])
    (one,) = failure.value.report.ops
    assert not one.impossible
    (result,) = one.results
    assert result.outcome == results.FAILED
    assert re.search(fault.said, result.text, re.DOTALL), result.text
    script = result.script
    if name == "stale_scalar":  # wrong from the second call on
        script = "import opforge.testing\n" + script.splitlines()[-1].removeprefix("# ")
    again = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=PATIENCE)
    assert again.returncode != 0 or "print(op(*case))" in script, script


@pytest.mark.parametrize("name", by_day())
def test_the_row_rejects_it_in_this_process(name):
    fault = EXPECTED[name]
    op = discover.find(str(FOLDER / name))
    worker.examine(op, 0)
    (row,) = find([fault.row])
    result = worker.run(row, Trial(op, Place(fault.place)))
    assert result.outcome == results.FAILED
    assert re.search(fault.said, result.text, re.DOTALL), result.text
    if result.script and "print(op(*case))" not in result.script:
        with pytest.raises(Exception, match=r".") as again:
            exec(result.script, {})
        assert not isinstance(again.value, SyntaxError), result.script


def test_a_leak_is_found_in_a_process_that_has_free_memory():
    *freed, last = [torch.zeros(8192) for _ in range(6000)]
    del freed  # what lies below `last` stays with the process
    op = discover.find(str(FOLDER / "keeps_every_result"))
    (row,) = find(["steady-memory"])
    assert worker.run(row, Trial(op, Place("cpu"))).outcome == results.FAILED
    assert last.numel()
