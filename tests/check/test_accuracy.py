# SPDX-License-Identifier: Apache-2.0
"""The row `accuracy` tells of ops that are right and needlessly inaccurate, and fails none."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from op_cases import WHOLE, nightly_but
from rich.console import Console

from opforge import discover, testing
from opforge.check import show, worker
from opforge.check.place import Place
from opforge.check.row import Trial, find
from opforge.truth import compare

SERIAL = Path(__file__).parents[1] / "right_ops" / "serial_sum"
SAID = r"right, but needlessly inaccurate: rms error of \w+ (\d+) ulp where PyTorch has [\d.]+ \(x "
LOOP = "for (int64_t j = 0; j < m.cols; ++j) sum += widen(*from.at(row, j));"
BLOCKS = """
for (int64_t begin = 0; begin < m.cols; begin += 128) {
  compute_t<T> block = 0;
  for (int64_t j = begin; j < std::min(begin + 128, m.cols); ++j) block += widen(*from.at(row, j));
  sum += block;
}
"""


def note(op, place="cpu", full=False):
    (row,) = find(["accuracy"])
    result = worker.run(row, Trial(discover.find(op), Place(place), full=full))
    assert result.outcome == "passed", result.text
    return result.text


@pytest.mark.nightly
def test_a_sum_one_by_one_is_told_in_the_table_and_in_json(tmp_path):
    report = testing.check(SERIAL, on=["cpu", "sim"], only=["accuracy"])
    for result in report.ops[0].results:
        assert result.outcome == "passed"
        found = re.match(SAID, result.text)
        assert found, result.text
        assert int(found[1]) > 10
        assert result.text.endswith("; add in blocks, or in several accumulators")
    console = Console(width=200)
    with console.capture() as captured:
        show.on_console(report, console)
    assert re.search(rf"accuracy +✓ +✓ +{SAID}", captured.get())
    show.write(report, tmp_path / "report.json", tmp_path / "report.html")
    said = json.loads((tmp_path / "report.json").read_text())["ops"][0]["results"][0]["text"]
    assert re.match(SAID, said)
    assert said in (tmp_path / "report.html").read_text()


@pytest.mark.nightly
def test_a_sum_in_blocks_is_not(tmp_path):
    source = (SERIAL / "cpu.cpp").read_text()
    assert LOOP in source
    folder = shutil.copytree(SERIAL, tmp_path / "blocked_sum")
    (folder / "cpu.cpp").write_text(
        "#include <algorithm>\n" + source.replace(LOOP, BLOCKS).replace("serial_", "blocked_")
    )
    record = (folder / "op.py").read_text().replace("serial_sum", "blocked_sum")
    (folder / "op.py").write_text(record)
    assert note(folder).startswith("at worst: rms error of blocked_sum ")


@nightly_but(*WHOLE)
def test_no_built_in_op_is_told(name):
    assert note(name).startswith("at worst: rms error of ")


@pytest.mark.nightly
@pytest.mark.parametrize("name", discover.builtin_names())
def test_no_built_in_op_is_told_in_any_dtype(name):
    assert note(name, full=True).startswith("at worst: rms error of ")


def test_what_is_wrong_is_not_called_right():
    folder = Path(__file__).parents[1] / "wrong_ops" / "naive_variance"
    (row,) = find(["accuracy"])
    result = worker.run(row, Trial(discover.find(folder), Place("cpu")))
    assert result.outcome == "failed"
    assert re.search(r"naive_variance: error \S+ where \S+ is allowed", result.text)


def test_an_element_that_cancels_is_measured_by_what_is_usual():
    truth = torch.tensor([1.0, -1.0, 2.0**-40], dtype=torch.float64)
    got = truth.float() + torch.tensor([0.0, 0.0, 2.0**-23])
    errors = compare.measured(got, truth.float(), truth)
    assert errors.torchs.rms == 0
    assert errors.ours.largest == pytest.approx(2, rel=0.01)  # half an ulp of 1 is 2^-24


@pytest.mark.parametrize(
    ("error", "words"),
    [(0.288, "0.29"), (4.13, "4.1"), (41.2, "41"), (99.7, "100"), (1140, "1,140")],
)
def test_ulps_are_readable(error, words):
    assert compare.in_ulps(error) == words
