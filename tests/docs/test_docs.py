# SPDX-License-Identifier: Apache-2.0
"""What the documents say is true."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers import PATIENCE

import opforge
from opforge import discover, settings

ROOT = Path(__file__).parents[2]


def test_every_setting_is_documented() -> None:
    text = (ROOT / "docs" / "settings.md").read_text()
    assert set(re.findall(r"^\| `(\w+)`", text, re.MULTILINE)) == set(settings.VARIABLES)


def test_the_readme_names_every_op() -> None:
    text = (ROOT / "README.md").read_text()
    for name in discover.builtin_names():
        assert f"[`{name}`](docs/ops/{name}.md)" in text


def test_the_readme_is_short() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 120


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
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert not done.stderr
    # Without the history of git nobody can tell which kernels have changed since they were timed.
    unknown = set() if _has_history() else {"docs/benchmarks.md"}
    assert set(done.stdout.splitlines()) <= unknown, "run python docs/generate.py"


def _has_history() -> bool:
    command = ["git", "-C", str(ROOT), "cat-file", "-e", "670aad3"]  # the oldest results are of it
    return subprocess.run(command, capture_output=True).returncode == 0


def test_every_op_has_a_page() -> None:
    pages = {p.stem: p.read_text() for p in (ROOT / "docs" / "ops").glob("*.md")}
    assert set(pages) == set(discover.builtin_names())
    for name, text in pages.items():
        assert f"\n{name}(Tensor" in text  # its schema
        assert "Measured on" in text or "Not measured yet." in text
        assert "\n## Known losses\n" in text


def test_a_new_op_needs_no_edit_outside_its_folder(tmp_path: Path) -> None:
    tree = tmp_path / "opforge"
    for part in ("src", "docs", "benchmarks", "tests"):
        shutil.copytree(ROOT / part, tree / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "README.md", tree)
    _rename_op("relu", "ramp", tree / "src" / "opforge" / "ops")
    before = _contents(tree / "src")

    def run(*command: str) -> str:
        # From within: the op reads the package that it is in, not the one that was installed.
        environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "COLUMNS": "200"}
        program = [sys.executable, *command]
        done = subprocess.run(
            program, cwd=tree, env=environment, capture_output=True, text=True, timeout=PATIENCE
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    assert "\nramp\tramp(Tensor x) -> Tensor y; " in run("-m", "opforge", "list")
    checked = run("-m", "opforge", "check", "ramp", "--only", "own-cases", "--on", "cpu")
    assert "1 passed" in checked
    timed = run("-m", "opforge", "bench", "ramp", "--on", "cpu", "--shapes", "64x64")
    assert "ramp" in timed
    run("docs/generate.py")
    page = (tree / "docs" / "ops" / "ramp.md").read_text()
    assert "\nramp(Tensor x) -> Tensor y" in page
    assert "y = max(x, 0)" in page  # from its docstring
    assert "Not measured yet." in page
    assert "Not checked yet." in page
    assert "[`ramp`](docs/ops/ramp.md)" in (tree / "README.md").read_text()
    index = (tree / "docs" / "README.md").read_text()
    assert "[`ramp(x)`](ops/ramp.md) | y = max(x, 0)" in index
    assert "(ops/ramp.md)" in (tree / "docs" / "benchmarks.md").read_text()
    run("-m", "opforge.registration.stubs")
    stubs = tree / "src" / "opforge" / "__init__.pyi"
    assert "\ndef ramp(x: Tensor) -> Tensor:" in stubs.read_text()
    assert _contents(tree / "src").items() ^ before.items() <= {
        (stubs, before[stubs]),
        (stubs, stubs.read_bytes()),
    }


def _rename_op(old: str, new: str, folder: Path) -> None:
    """Add a copy of an op, as somebody would who writes a new one."""
    shutil.copytree(folder / old, folder / new)
    (folder / new / "docs.toml").unlink()
    for file in (f for f in (folder / new).iterdir() if f.suffix in (".py", ".cu", ".cpp")):
        text = file.read_text().replace(old, new)
        file.write_text(text.replace(f"torch.{new}", f"torch.{old}"))


def _contents(folder: Path) -> dict[Path, bytes]:
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.suffix != ".pyc"}


def test_moved_and_reformatted_kernels_have_not_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    from pages import kernels

    package = "src/opforge"
    then = {
        f"{package}/ops/a/kernel.cuh": "#include <opforge/b.h>\nint a() { return b(); }  // slow\n",
        f"{package}/include/opforge/b.h": "#pragma once\nnamespace o {\nint b() { return 1; }\n}\n",
    }
    now = {
        f"{package}/ops/a/kernel.cuh": "#include <opforge/x/b.h>\nint a() {\n  return b();\n}\n",
        f"{package}/include/opforge/x/b.h": "#pragma once\nint b() { return 1; }  // one\n",
    }
    monkeypatch.setattr(kernels, "_at", lambda commit: then)
    monkeypatch.setattr(kernels, "_now", lambda: now)
    assert kernels.change("a", "670aad3") == "no"
    now[f"{package}/include/opforge/x/b.h"] = "int b() { return 2; }"
    assert kernels.change("a", "670aad3") == "25%"
    del now[f"{package}/ops/a/kernel.cuh"]  # now the host code includes a shared kernel
    now[f"{package}/ops/a/cuda.cu"] = "#include <opforge/x/host.h>\nint host() { return 3; }"
    now[f"{package}/include/opforge/x/host.h"] = "#include <opforge/x/a.cuh>\nint more;"
    now[f"{package}/include/opforge/x/a.cuh"] = then[f"{package}/ops/a/kernel.cuh"]
    now[f"{package}/include/opforge/b.h"] = then[f"{package}/include/opforge/b.h"]
    assert kernels.change("a", "670aad3") == "no"
    monkeypatch.setattr(kernels, "_at", lambda commit: None)
    assert kernels.change("a", "670aad3") == "unknown"


def test_renamed_kernels_of_the_same_instructions_have_not_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    from pages import kernels

    file = "src/opforge/ops/a/kernel.cuh"
    commits = {"old": "int a() { return 1; }", "new": "int b() { return 1; }"}
    noted = {"old": {"a": "1234"}, "new": {"a": "1234"}}
    monkeypatch.setattr(kernels, "_at", lambda commit: {file: commits[commit]})
    monkeypatch.setattr(kernels, "_now", lambda: {file: commits["new"] + "  // today"})
    monkeypatch.setattr(kernels, "_machine_code", lambda: noted)
    assert kernels.change("a", "old") == "no, same instructions"
    noted["new"] = {"a": "5678"}
    assert kernels.change("a", "old") == "50%"
    noted["new"] = {}
    noted["old"] = {}
    assert kernels.change("a", "old") == "50%"


def test_the_example_on_the_page_of_an_op_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    from pages.notes import notes

    for name in discover.builtin_names():
        example = notes(discover.find(name)).example
        assert not example or f"opforge.{name}(" in example
        exec(example, {"torch": torch, "opforge": opforge})


def test_every_known_loss_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    from pages.data import load, losses
    from pages.notes import reason

    data = load()
    found = losses(data.of(data.ops))
    without = [
        f"{c.ours.title}, {c.ours.dtype}, {c.ours.size}: {c.ratio:.2f} {c.other.implementation}"
        for c in found
        if c.other and not reason(c, data.ops[c.ours.op])
    ]
    assert not without, "the docs.toml of these ops lack reasons:\n" + "\n".join(without)


LINK = re.compile(r"\]\(([^)#\s]+)(#[^)\s]*)?\)")


def test_links_lead_somewhere() -> None:
    top = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")]
    for page in [*top, *(ROOT / "docs").rglob("*.md")]:
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        links = [link for link, _ in LINK.findall(text) if "://" not in link]
        broken = [link for link in links if not (page.parent / link).exists()]
        assert not broken, page


def test_every_page_is_in_the_index() -> None:
    index = ROOT / "docs" / "README.md"
    links = {(index.parent / link).resolve() for link, _ in LINK.findall(index.read_text())}
    pages = {p.resolve() for p in (ROOT / "docs").rglob("*.md")} - {index.resolve()}
    assert pages <= links


@pytest.mark.nightly
def test_the_training_example_learns() -> None:
    command = [sys.executable, str(ROOT / "examples" / "train.py"), "--steps", "40"]
    text = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=PATIENCE
    ).stdout
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
    ran = sum(1 for text in table.values() if text != "not run")
    assert f"The simulator names {len(table)} of {len(table)} faults" in page
    assert f"compute-sanitizer names {named} of {ran}" in page


def test_no_row_of_the_committed_checks_failed() -> None:
    page = (ROOT / "docs" / "scores.md").read_text()
    summary = re.search(r"## Summary\n\n(.*?)\n\n", page, re.DOTALL)
    assert summary
    assert "✗" not in summary[1]
