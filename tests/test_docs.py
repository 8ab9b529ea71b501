# SPDX-License-Identifier: Apache-2.0
"""What the documents say holds."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

import opforge
from opforge import discover, settings

ROOT = Path(__file__).parent.parent


def test_every_setting_is_documented() -> None:
    text = (ROOT / "docs" / "settings.md").read_text()
    assert set(re.findall(r"^\| `(\w+)`", text, re.MULTILINE)) == set(settings.VARIABLES)


def test_the_readme_names_every_op() -> None:
    text = (ROOT / "README.md").read_text()
    for name in discover.builtin_names():
        assert re.search(rf"^\| `{name}\(", text, re.MULTILINE)


def test_the_readmes_smallest_op_works(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text()
    code = next(c for c in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "Op(" in c)
    (tmp_path / "op.py").write_text(code)
    softcap = opforge.load(tmp_path)
    x = torch.randn(5, dtype=torch.float64, requires_grad=True)
    assert torch.equal(softcap(x, 2.0), 2.0 * torch.tanh(x / 2.0))
    assert torch.autograd.gradcheck(lambda t: softcap(t, 2.0), x)


def test_generated_pages_are_those_of_the_records_and_committed_results() -> None:
    command = [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert not done.stderr
    assert not done.stdout, "run python docs/generate.py"
    assert done.returncode == 0


def test_the_readme_quotes_the_summary_of_the_benchmarks() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    summary = re.search(r"## Summary.*?(\| op .*?)\n\n", page, re.DOTALL)
    assert summary
    readme = (ROOT / "README.md").read_text()
    quoted = [line for line in readme.splitlines() if re.match(r"\| \w+, (for|back)ward", line)]
    assert set(quoted) <= set(summary[1].splitlines())
    for name in discover.builtin_names():
        assert any(line.startswith(f"| {name}, forward") for line in quoted), name


def test_every_op_has_a_page() -> None:
    pages = {p.stem: p.read_text() for p in (ROOT / "docs" / "ops").glob("*.md")}
    assert set(pages) == set(discover.builtin_names())
    for name, text in pages.items():
        assert f"\n{name}(Tensor" in text  # its schema
        assert "Measured on" in text
        assert "\n## Known losses\n" in text


def test_the_example_on_the_page_of_an_op_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    from pages.uses import USES

    assert set(USES) == set(discover.builtin_names())
    for name, use in USES.items():
        assert f"opforge.{name}(" in use.example
        exec(textwrap.dedent(use.example), {"torch": torch, "opforge": opforge})


def test_every_known_loss_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    from pages.data import load, losses
    from pages.reasons import reason

    data = load()
    found = losses(data.of(data.ops))
    without = [
        f"{c.ours.title}, {c.ours.dtype}, {c.ours.size}: {c.ratio:.2f} {c.other.implementation}"
        for c in found
        if c.other and not reason(c, data.ops[c.ours.op])
    ]
    assert not without, "docs/pages/reasons.py lacks reasons:\n" + "\n".join(without)


LINK = re.compile(r"\]\(([^)#\s]+)(#[^)\s]*)?\)")


def test_links_lead_somewhere() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        links = [link for link, _ in LINK.findall(text) if "://" not in link]
        broken = [link for link in links if not (page.parent / link).exists()]
        assert not broken, page


def test_every_page_is_in_the_index() -> None:
    index = ROOT / "docs" / "README.md"
    links = {(index.parent / link).resolve() for link, _ in LINK.findall(index.read_text())}
    pages = {p.resolve() for p in (ROOT / "docs").rglob("*.md")} - {index.resolve()}
    assert pages <= links


def test_the_training_example_learns() -> None:
    command = [sys.executable, str(ROOT / "examples" / "train.py"), "--steps", "40"]
    text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=250).stdout
    accuracy = re.findall(r"accuracy ([\d.]+)", text)
    assert len(accuracy) == 2
    assert all(float(a) > 0.6 for a in accuracy)


def test_sources_carry_their_licence_line() -> None:
    files = [
        f
        for pattern in ("*.py", "*.h", "*.cuh", "*.cu", "*.cpp")
        for folder in ("src", "tests", "examples", "benchmarks", "docs")
        for f in (ROOT / folder).rglob(pattern)
    ]
    bare = [f for f in files if "SPDX-License-Identifier: Apache-2.0" not in f.read_text()[:200]]
    assert files
    assert not bare


def test_the_table_of_wrong_kernels_is_complete() -> None:
    page = (ROOT / "docs" / "simulator.md").read_text()
    rows = re.findall(r"^\| (\w+) \| .* \| (.*) \|$", page, re.MULTILINE)
    table = dict(rows[next(i for i, row in enumerate(rows) if row[0].startswith("atomics")) :])
    assert set(table) == {p.name for p in (ROOT / "tests" / "wrong_kernels").iterdir()}
    named = sum(1 for text in table.values() if "check" in text)
    assert f"{len(table)} named here, {named} there." in page
    assert f"Of {len(table)} wrong kernels it names all" in (ROOT / "README.md").read_text()
    assert f"names {named}." in (ROOT / "README.md").read_text()


def test_the_readme_quotes_the_scores() -> None:
    page = (ROOT / "docs" / "scores.md").read_text()
    readme = (ROOT / "README.md").read_text()
    summary = re.search(r"## Summary\n\n(.*?)\n\n", page, re.DOTALL)
    sentence = re.search(r"Of \d+ wrong ops .*? together \d+\.", page)
    assert summary
    assert sentence
    assert summary[1] in readme
    assert sentence[0] in readme
    assert "✗" not in summary[1]


def test_the_readme_quotes_the_share_of_mutants() -> None:
    page = (ROOT / "docs" / "mutants.md").read_text()
    readme = (ROOT / "README.md").read_text()
    sentence = re.search(r"Of \d+ generated faults .*? together \d+%\.", page)
    counts = re.search(r"(\d+) of (\d+) mutants", page)
    assert sentence
    assert counts
    assert sentence[0] in readme
    assert f"Of {counts[2]} mutants {counts[1]} have run so far." in readme
