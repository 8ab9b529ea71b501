# SPDX-License-Identifier: Apache-2.0
"""`opforge next` tells what is done, what the last results were, and the next command."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from helpers import write_op
from new_folders import write
from typer.testing import CliRunner

from opforge import cli, discover, history, testing
from opforge.bench import runner
from opforge.errors import RecordError


@pytest.fixture(autouse=True)
def own_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A history of the test's own; libraries come from the usual cache."""
    monkeypatch.setattr(
        history, "_file", lambda op: tmp_path / "history" / f"{op.name}.json", raising=True
    )


def following(path: object) -> tuple[dict[str, tuple[str, str]], str]:
    """Step -> its state and text, and what is next."""
    result = CliRunner().invoke(cli.app, ["next", str(path)])
    assert result.exit_code == 0, result.output
    table, _, last = result.stdout.rstrip().rpartition("\n\n")
    assert len(table.splitlines()) <= 11
    rows = [re.split(r"  +", line.strip(), maxsplit=2) for line in table.splitlines()[1:]]
    return {name: (state, text) for name, state, text in rows}, last


def delete_marks(folder: Path) -> None:
    for file in folder.iterdir():
        text = re.sub(r"^( *(?:#|//) )EDIT \d+: ", r"\1", file.read_text(), flags=re.MULTILINE)
        file.write_text(text)


def edit(file: Path, right: str, wrong: str) -> None:
    text = file.read_text()
    assert right in text
    file.write_text(text.replace(right, wrong))


def test_a_fresh_folder_has_places_to_edit(tmp_path: Path) -> None:
    folder = write("elementwise", tmp_path)
    steps, last = following(folder)
    assert steps["formula"] == ("edit", "op.py:12: the formula, in plain PyTorch")
    assert steps["cases"] == ("edit", "op.py:25: the inputs that every test uses")
    assert steps["kernel"] == ("edit", "kernel.cuh:9: the formula, and 1 more")
    assert steps["backward"][1].endswith("in plain PyTorch, and 1 more")
    assert steps["binding"] == ("done", "plain_elementwise, plain_elementwise_backward")
    assert steps["fake"][0] == "done"
    assert [steps[s] for s in ("check", "bench", "profile", "ship")] == [("to do", "not yet")] * 4
    assert last == (
        f"next: edit {folder / 'op.py'}, line 12: the formula, in plain PyTorch. Delete the mark"
    )


def test_a_place_is_done_when_its_mark_is_gone(tmp_path: Path) -> None:
    folder = write("elementwise", tmp_path)
    delete_marks(folder)
    steps, last = following(folder)
    assert steps["formula"] == ("done", "plain_elementwise(Tensor x, float scale) -> Tensor y")
    assert steps["cases"] == ("done", "10 in the record")
    assert steps["kernel"] == ("done", "cuda.cu, cpu.cpp")
    assert steps["backward"][1].startswith("plain_elementwise_backward(Tensor grad_y, ")
    assert last == f"next: opforge check {folder}"


def test_the_last_check_and_whether_files_have_changed_since(tmp_path: Path) -> None:
    folder = write("blank", tmp_path)
    delete_marks(folder)
    testing.check(folder, on=["cpu"], only=["own-cases"])  # some rows are no check
    assert following(folder)[0]["check"] == ("to do", "not yet")
    op = discover.load_folder(folder).op
    facts = {"count": "60 passed, 0 failed, 3 not run", "failed": 0, "first": "", "impossible": ""}
    history.keep(op, "check", {**facts, "places": ["cpu"], "check": "quick"})
    steps, last = following(folder)
    assert steps["check"] == ("done", "60 passed, 0 failed, 3 not run, quick, on cpu, just now")
    assert last == f"next: opforge bench {folder} --backward"
    edit(folder / "op.py", "return x * x", "return x * x * 1.0")
    steps, last = following(folder)
    assert steps["check"][0] == "stale"
    assert steps["check"][1].endswith("just now; files have changed since")
    assert last == f"next: opforge check {folder}"


@pytest.mark.nightly
def test_a_check_that_failed_is_remembered(tmp_path: Path) -> None:
    folder = write("composed", tmp_path)
    delete_marks(folder)
    edit(folder / "op.py", "scale=scale", "scale=2 * scale")
    with pytest.raises(AssertionError):
        testing.check(folder, on=["cpu"])
    steps, last = following(folder)
    assert steps["check"][0] == "fault"
    assert re.search(r"\d+ passed, [1-9]\d* failed, .* \(\S+ on cpu\), quick, ", steps["check"][1])
    assert last == f"next: opforge check {folder}"


def test_a_benchmark_is_remembered(tmp_path: Path) -> None:
    folder = write("blank", tmp_path)
    op = discover.load_folder(folder).op
    runner.run([op], runner.Options("cpu", [(8, 64)], peers=["eager"]), quiet=True)
    state, text = following(folder)[0]["bench"]
    assert state == "done"
    assert re.fullmatch(
        r"1 workloads on the CPU, [\d.]+% of the ceiling, [\d.e+]+ times as fast as the best "
        "alternative, just now",
        text,
    )


def test_an_op_without_kernels_has_no_steps_for_them(tmp_path: Path) -> None:
    steps, _ = following(write("blank", tmp_path))
    assert steps["kernel"] == ("none", "the reference runs on the CPU, and nothing on a GPU")
    assert steps["binding"][0] == steps["profile"][0] == "none"
    assert steps["backward"] == ("done", "derived from the reference")


def test_a_kernel_that_is_not_registered_is_named(tmp_path: Path) -> None:
    folder = write("matmul", tmp_path)
    delete_marks(folder)
    edit(folder / "cuda.cu", "OPFORGE_IMPL(plain_matmul_backward", "// (plain_matmul_backward")
    steps, last = following(folder)
    text = "no OPFORGE_IMPL(plain_matmul_backward, …) for cuda"
    assert steps["binding"] == ("to do", text)
    assert last == f"next: write {text[3:]} in a source of {folder}"


def test_faults_of_the_record_come_first(tmp_path: Path) -> None:
    folder = write("blank", tmp_path)
    edit(folder / "op.py", "yield make(16, 32)", "yield make(16, -1)")
    steps, _ = following(folder)
    assert steps["cases"][0] == "edit" or steps["cases"][1].startswith("cases raises RuntimeError")
    edit(folder / "op.py", "    reference=reference,\n", "")
    steps, last = following(folder)
    assert list(steps) == ["formula"]
    assert steps["formula"][0] == "fault"
    assert "has no reference" in steps["formula"][1]
    assert last == f"next: mend {folder / 'op.py'}"


def test_a_reference_that_reads_values_has_no_fake(tmp_path: Path) -> None:
    record = """
        from opforge import Op
        op = Op(schema="picky(Tensor x) -> Tensor y", reference=lambda x: x * x.max().item(),
                cases=lambda make: [(make(3),)])
    """
    steps, last = following(write_op(tmp_path / "picky", op_py=record, cpp=None))
    assert steps["fake"][0] == "fault"
    assert "on meta tensors, the reference raises" in steps["fake"][1]
    assert last.startswith("next: mend the reference in ")


def test_everything_can_be_done(tmp_path: Path) -> None:
    folder = write("elementwise", tmp_path)
    delete_marks(folder)
    op = discover.load_folder(folder).op
    checked = {"count": "1 passed", "failed": 0, "first": "", "impossible": ""}
    history.keep(op, "check", {**checked, "places": ["cpu", "sim"], "check": "full"})
    timed = {"device": "the CPU", "workloads": 2, "errors": 0, "shares": [0.9], "speeds": [1, 2]}
    history.keep(op, "bench", timed)
    history.keep(op, "profile", {"title": "plain_elementwise 8192x8192", "advice": "a copy"})
    history.keep(op, "ship", {"what": "dist/plain.whl"})
    steps, last = following(folder)
    assert {state for state, _ in steps.values()} == {"done"}
    assert last == "Everything is done and up to date."
    assert steps["bench"][1].startswith(
        "2 workloads on the CPU, 90% of the ceiling, 1 to 2 times as fast as the best alternative"
    )


def test_every_builtin_op_is_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("relu", "dropout", "rms_norm", "linear_cross_entropy"):
        steps, _ = following(name)
        assert steps["binding"][0] in ("done", "none")
        assert steps["formula"][0] == steps["fake"][0] == "done"


def test_a_path_without_an_op_is_an_error(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli.app, ["next", os.fspath(tmp_path / "nothing")])
    assert isinstance(result.exception, RecordError)
    assert "is neither a built-in op" in str(result.exception)
