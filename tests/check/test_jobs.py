# SPDX-License-Identifier: Apache-2.0
"""`opforge check --jobs`: the same report from several processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from helpers import write_op

from opforge import testing
from opforge.errors import OpforgeError

RECORD = """\
# SPDX-License-Identifier: Apache-2.0
import os, pathlib, sys, time
import torch
from opforge import Op

{before}

op = Op(
    schema="{name}(Tensor x) -> Tensor y",
    reference={reference},
    dtypes=(torch.float32, torch.float64),
    cases=lambda make: [(make(7),), (make(5, 33),)],
    {more}
)
"""


def write(
    folder: Path,
    name: str,
    reference: str = "lambda x: 2 * x",
    before: str = "",
    more: str = "",
    cpp: str | None = None,
) -> Path:
    text = RECORD.format(name=name, reference=reference, before=before, more=more)
    return write_op(folder / name, op_py=text, cpp=cpp)


def start(*arguments: object, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "opforge", "check", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # In the workers, too: the machine may be small, and its cores wanted by others.
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "160"},
        **options,
    )


def check(*arguments: object, rows: str = "") -> tuple[int, str]:
    """Exit code, and what it said."""
    only = [word for row in rows.split() for word in ("--only", row)]
    process = start(*arguments, *only)
    said, _ = process.communicate()
    return process.returncode, said


def without_times(file: Path) -> Any:
    report = json.loads(file.read_text())
    del report["facts"]["time"]
    for op in report["ops"]:
        for result in op["results"]:
            del result["seconds"]
    return report


@pytest.mark.nightly
def test_the_report_is_that_of_one_job(tmp_path):
    folders = [
        write(
            tmp_path,
            "wrong",
            "lambda x: 2 * x if x.numel() else os.abort()",
            more="backward=lambda grad_y, x: 3 * grad_y,",
        ),
        write(tmp_path, "rolls_dice", "lambda x: x + torch.rand(())"),
        write(tmp_path, "broken", cpp="int broken("),
    ]
    rows = "own-cases empty offset aliasing gradients far-apart other-device graph"
    what = ["relu", *folders, "--on", "cuda,sim,cpu"]
    one, three = (tmp_path / f"{jobs}.json" for jobs in (1, 3))
    for jobs, file in ((1, one), (3, three)):
        code, said = check(*what, "--jobs", jobs, "--json", file, rows=rows)
        assert code == 1, said
    report = without_times(three)
    assert report == without_times(one)
    relu, wrong, rolls_dice, broken = report["ops"]
    assert list(relu["kernels"])[:2] == ["cpu", "sim"]
    assert {r["outcome"] for r in relu["results"]} == {"passed", "not run"}
    assert [r["row"] for r in relu["results"] if r["place"] == "sim"] == [
        "own-cases", "empty", "offset", "aliasing", "gradients", "far-apart", "other-device"
    ]  # fmt: skip
    failed = [r for r in wrong["results"] if r["outcome"] == "failed"]
    assert [(r["row"], r["cause"]) for r in failed] == [
        ("empty", ""), ("offset", "gradients"), ("gradients", ""), ("far-apart", "gradients")
    ]  # fmt: skip
    assert "process that ran the kernel is gone: ended by SIGABRT" in failed[0]["text"]
    assert "passed" in {r["outcome"] for r in wrong["results"]}
    assert "the reference of rolls_dice is not deterministic" in rolls_dice["impossible"]
    assert "cpu.cpp:1" in broken["impossible"]
    assert not broken["results"]


@pytest.mark.nightly
def test_a_check_may_stop_at_the_first_row_that_fails(tmp_path):
    folder = write(tmp_path, "wrong", more="backward=lambda grad_y, x: 3 * grad_y,")
    rows = "own-cases gradients aliasing"
    for options, outcomes in (
        ([], {"own-cases": "passed", "gradients": "failed", "aliasing": "passed"}),
        (["--stop"], {"own-cases": "passed", "gradients": "failed"}),
    ):
        file = tmp_path / "report.json"
        code, said = check(folder, "--on", "cpu", *options, "--json", file, rows=rows)
        assert code == 1, said
        (one,) = json.loads(file.read_text())["ops"]
        assert {r["row"]: r["outcome"] for r in one["results"]} == outcomes


# --- what runs beside what ------------------------------------------------------------------------

# A worker does, instead of running a row, something that it is told to.
IN_WORKER = """\
main = sys.modules["__main__"]
if main.__spec__ is not None and main.__spec__.name == "opforge.check.worker":
    run = main.run
    def instead(row, trial):
{code}
    main.run = instead
"""
NOTE = """\
        began = time.monotonic()
        result = run(row, trial)
        time.sleep(0.2)
        with open({log!r}, "a") as file:
            print(os.getpid(), trial.op.name, row.name, began, time.monotonic(), file=file)
        return result
"""
SLEEP = """\
        with open({log!r}, "a") as file:
            print(os.getpid(), file=file)
        time.sleep(600)
"""


@dataclass(frozen=True)
class Ran:
    process: str
    op: str
    row: str
    began: float
    ended: float

    def beside(self, other: Ran) -> bool:
        return self is not other and self.began < other.ended and other.began < self.ended


@pytest.mark.nightly
def test_rows_run_side_by_side_but_those_that_must_be_alone(tmp_path):
    log = tmp_path / "log"
    before = IN_WORKER.format(code=NOTE.format(log=str(log)))
    folders = [write(tmp_path, name, before=before) for name in ("first", "second", "third")]
    rows = "own-cases far-apart empty offset scalars aliasing expanded inputs-unchanged"
    code, said = check(*folders, "--on", "cpu", "--jobs", 3, rows=rows)
    assert code == 0, said
    lines = [line.split() for line in log.read_text().splitlines()]
    ran = sorted((Ran(*line[:3], *map(float, line[3:])) for line in lines), key=lambda r: r.began)
    assert len(ran) == 3 * 8
    shared, alone = ran[:-3], ran[-3:]
    assert {r.row for r in alone} == {"far-apart"}
    assert not [(a, b) for a in alone for b in ran if a.beside(b)]
    assert any(a.beside(b) for a in shared for b in shared)
    firsts = {r.process: r for r in reversed(shared)}.values()
    assert {r.op for r in firsts} >= {"first", "second", "third"}  # each lane has its own op


@pytest.mark.nightly
def test_a_row_that_lacks_memory_beside_others_is_run_again_alone(tmp_path):
    greedy = """\
def greedy(x):
    mark = pathlib.Path({mark!r})
    if torch.are_deterministic_algorithms_enabled() and not mark.exists():
        mark.touch()
        raise torch.OutOfMemoryError("others have it")
    return 2 * x
"""
    mark, file = tmp_path / "mark", tmp_path / "report.json"
    folder = write(tmp_path, "greedy", "greedy", greedy.format(mark=str(mark)))
    what = [folder, "--on", "cpu", "--jobs", 2, "--json", file]
    code, said = check(*what, rows="own-cases deterministic")
    assert code == 0, said
    assert mark.exists()
    results = without_times(file)["ops"][0]["results"]
    assert [(r["row"], r["outcome"]) for r in results] == [
        ("own-cases", "passed"), ("deterministic", "passed")
    ]  # fmt: skip


@pytest.mark.nightly
def test_ctrl_c_ends_all_workers(tmp_path):
    log = tmp_path / "log"
    log.touch()
    folder = write(tmp_path, "sleepy", before=IN_WORKER.format(code=SLEEP.format(log=str(log))))
    process = start(
        *[folder, "--on", "cpu", "--jobs", 3],
        # What is started in the background ignores the signal, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        while len(log.read_text().split()) < 3:
            assert process.poll() is None
            time.sleep(0.1)
        workers = log.read_text().split()
        assert len(workers) == 3
        process.send_signal(signal.SIGINT)
        assert process.wait() != 0
    finally:
        process.kill()
        process.communicate()
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)


def test_less_than_one_job_is_a_mistake():
    code, said = check("relu", "--jobs", 0)
    assert (code, "Invalid value for '--jobs': " in said) == (2, True)
    with pytest.raises(OpforgeError, match="jobs 0 must be at least 1"):
        testing.check("relu", jobs=0)
