# SPDX-License-Identifier: Apache-2.0
"""`opforge check` rejects every wrong op on the row that names its fault."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from opforge import testing
from opforge.check import results

FOLDER = Path(__file__).parent / "wrong_ops"
sys.path.insert(0, str(FOLDER))
from expected import EXPECTED  # noqa: E402


def test_every_wrong_op_is_in_the_table():
    assert sorted(p.parent.name for p in FOLDER.glob("*/op.py")) == sorted(EXPECTED)
    assert len(EXPECTED) >= 25


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
    again = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=100)
    assert again.returncode != 0 or "print(op(*case))" in script, script
