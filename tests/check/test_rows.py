# SPDX-License-Identifier: Apache-2.0
"""The rows of `opforge check` for every built-in op, wherever this machine can run it.

By day, an elementwise op and a reduction get every row of the quick check, as users run it. All
others get their cases, gradients and the rows that their records make special, in this process:
starting one for each op would take longer than the rows. Everything is for --nightly.
"""

from __future__ import annotations

import pytest
import torch
from op_cases import OPS, TWINS, WHOLE, nightly_but, record
from special_rows import special_rows

from opforge import testing
from opforge.check import results, worker
from opforge.check import row as rows
from opforge.check.place import Place


def in_this_process(name: str, places: list[str], chosen: list[str]) -> object:
    found = [(row, p) for p in places for row in rows.find(chosen) if rows.applies_at(row, p)]

    @pytest.mark.parametrize(("row", "place"), found, ids=[f"{r.name}-{p}" for r, p in found])
    def test(row: rows.Row, place: str) -> None:
        result = worker.run(row, rows.Trial(record(name), Place(place)))
        if result.outcome in (results.NOT_APPLICABLE, results.NOT_RUN):
            pytest.skip(result.text)
        assert result.outcome == results.PASSED, f"{result.text}\n\n{result.script}"

    return test


PLACES = ["cpu", "sim", "cuda"] if torch.cuda.is_available() else ["cpu", "sim"]
for _name in OPS:
    _quick = testing.matrix(_name, on=PLACES)
    if _name not in WHOLE:
        _places = [p for p in PLACES if p != "sim" or _name not in TWINS]
        _few = in_this_process(_name, _places, special_rows(record(_name)))
        globals()[f"test_{_name}_in_few_rows"] = _few
        _quick = pytest.mark.nightly(_quick)
    globals()[f"test_{_name}"] = _quick
    globals()[f"test_{_name}_in_full"] = pytest.mark.nightly(
        testing.matrix(_name, on=PLACES, full=True)
    )


@nightly_but(WHOLE[0])
def test_the_starred_row_that_a_quick_check_leaves_out(name: str) -> None:
    testing.check(name, on=["cpu"], full=True, only=["import"])


def test_rows_that_are_special_exist_and_are_special_to_some() -> None:
    special = [set(special_rows(record(name))) for name in OPS]
    assert set.union(*special) <= {r.name for r in rows.all_rows()}
    assert set.intersection(*special) == {"own-cases", "gradients"}
