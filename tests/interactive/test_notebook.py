# SPDX-License-Identifier: Apache-2.0
"""opforge in IPython: cells, the names of cells, and results as tables."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

import opforge
from opforge import discover
from opforge.bench.results import Results, Row
from opforge.build import origins
from opforge.check.results import FAILED, NOT_RUN, PASSED, OpReport, Report, Result


@pytest.fixture
def shell(tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    history = Config({"HistoryManager": {"hist_file": ":memory:"}})
    shell = InteractiveShell.instance(config=history)
    run(shell, "import torch, opforge")
    run(shell, "%load_ext opforge")
    yield shell
    InteractiveShell.clear_instance()


def run(shell, cell):
    """Run a cell as a notebook does. Returns its value, or raises what it raises."""
    done = shell.run_cell(cell, store_history=True)
    done.raise_error()
    return done.result


PAGE = Path(__file__).parents[2] / "docs" / "inline.md"
FORMULA = "def formula(x, cap):\n    return cap * torch.tanh(x / cap)"
MAGIC = "%%opforge softly(Tensor x, float cap) -> Tensor y --reference formula "


def test_a_cell_becomes_a_function_and_again_quietly(shell, capfd):
    run(shell, FORMULA)
    run(shell, MAGIC + "--elementwise\ny = cap * tanh(x / cap)\n")
    first = shell.user_ns["softly"]
    run(shell, MAGIC + "--elementwise\ny = cap * tanh(x / cap)\n")
    assert shell.user_ns["softly"] is first
    run(shell, MAGIC + "--elementwise\ny = x\n")
    assert shell.user_ns["softly"] is not first
    assert capfd.readouterr() == ("", "")


def test_the_cell_on_the_page_is_one(shell):
    run(shell, FORMULA)
    (cell,) = re.findall(r"```\n(%%opforge .*?)```", PAGE.read_text(), re.DOTALL)
    run(shell, cell)
    assert discover.record_of(shell.user_ns["softcap"]).pointwise


def place_of(op, text):
    """Where a compiler's error is, in the line of the formula's header that holds a text."""
    lines = (op.folder / "formula.h").read_text().splitlines()
    line = next(i for i, code in enumerate(lines, 1) if text in code)
    return origins.translate(f"{op.folder}/formula.h:{line}:9: error", op.folder)


@pytest.mark.nightly
def test_an_error_is_at_the_line_of_the_cell(shell):
    run(shell, FORMULA)
    run(shell, MAGIC + "--elementwise\n\ny = cap *\n    thna(x / cap);\n")
    number = shell.execution_count - 1
    with pytest.raises(opforge.errors.BuildError, match=rf"In\[{number}\]:4: error: .*thna"):
        run(shell, "softly(torch.ones(3), 2.0)")


def test_places_are_lines_of_the_cell(shell):
    run(shell, FORMULA)
    run(shell, MAGIC + "--elementwise\n\ny = cap *\n    tanh(x / cap);\n")
    number = shell.execution_count - 1
    assert place_of(shell.user_ns["softly"], "tanh(") == f"In[{number}]:4: error"


def test_so_they_are_in_a_cell_that_calls_inline(shell):
    cell = """\
import torch

doubled = opforge.inline(
    "doubled(Tensor x) -> Tensor y",
    lambda x: x + x,
    elementwise="y = x + x",
)
"""
    run(shell, cell)
    number = shell.execution_count - 1
    assert place_of(shell.user_ns["doubled"], "x + x") == f"In[{number}]:6: error"


def test_a_cell_of_cpp(shell, monkeypatch):
    monkeypatch.setenv("OPFORGE_JIT", "0")
    run(shell, "def formula(x):\n    return x * 3\n\ndef slope(grad_y):\n    return 3 * grad_y")
    source = "// A whole source.\nOPFORGE_IMPL(threefold, function)\n"
    head = "%%opforge threefold(Tensor x) -> Tensor y --reference formula --backward slope --cpu\n"
    run(shell, head + source)
    op = shell.user_ns["threefold"]
    assert source in (op.folder / "cpu.cpp").read_text()
    x = torch.ones(2, requires_grad=True)
    with pytest.warns(UserWarning, match="runs through its PyTorch reference"):
        y = op(x)
    y.sum().backward()
    assert (y.tolist(), x.grad.tolist()) == ([3, 3], [3, 3])


def test_the_check_copies_functions_of_cells(shell):
    run(shell, "FACTOR = 2.5")
    run(shell, "def by_factor(x):\n    return x * FACTOR")
    run(shell, "scaled = opforge.inline('scaled(Tensor x) -> Tensor y', lambda x: by_factor(x))")
    report = run(shell, "opforge.testing.check(scaled, on=['cpu'], only=['own-cases'])")
    assert [r.outcome for r in report.ops[0].results] == [PASSED]
    shown, _ = shell.display_formatter.format(report)
    assert "own-cases" in shown["text/html"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("softly(Tensor x) -> Tensor y", "--reference; write %%opforge SCHEMA --reference"),
        ("softly(Tensor x) -> Tensor y --reference nothing", "'nothing' is no function of the n"),
        ("softly(Tensor x) -> Tensor y --reference torch.exp --gpu", "--gpu; write %%opforge"),
        ("softly(Tensor x) -> Tensor y --reference torch.exp --cpu --cuda", "not allowed with"),
        ("softly(Tensor x) -> Tensor y --reference 'torch", "No closing quotation; write"),
        ("softly(Tensor x) -> Tensor y --reference torch.exp", r"no OPFORGE_IMPL\(softly,"),
        ("softly(Tensor) -> Tensor y --reference torch.exp", "cannot be parsed"),
    ],
)
def test_a_wrong_line_is_explained(shell, line, said):
    with pytest.raises(opforge.errors.RecordError, match=said) as raised:
        run(shell, f"%%opforge {line}\ny = x\n")
    assert "\n" not in str(raised.value)
    assert "softly" not in shell.user_ns


# --- results ---


class Tags(HTMLParser):
    """The text of an HTML fragment; fails where tags do not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        if tag not in ("td", "th", "tr", "li"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in ("td", "th", "tr", "li"):
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data + " "


def test_a_report_is_a_table():
    failure = Result("gradients", "cpu", FAILED, text="grad_x <off> by 3", script="print(1)")
    results = [Result("own-cases", "cpu", PASSED), failure]
    results.append(Result("own-cases", "cuda", NOT_RUN, text="no GPU"))
    report = Report([OpReport("mine", "/folder", results)], {"check": "quick"})
    shown = Tags(report._repr_html_()).text
    assert "✗ mine, gradients, CPU" in shown
    assert "grad_x <off> by 3" in shown
    assert "no GPU" in shown


def test_benchmark_results_are_a_table():
    def row(name, **more):
        return Row("mine", "forward", "", "float32", (8, 9), name, "run", bytes=10**6, **more)

    ours = row("opforge", us=10.0, low=9.9, high=10.1, ceilings={"copy": 9.0}, ceiling="copy")
    rows = [ours, row("eager", us=25.0, low=24.0, high=26.0), row("bad", error="wrong: <b>")]
    results = Results(rows, {"run": {}})
    shown = Tags(results._repr_html_()).text
    assert "8 × 9" in shown
    assert "2.500× the speed of eager" in shown
    assert "90.0%" in shown
    assert "✗ wrong: <b>" in shown
