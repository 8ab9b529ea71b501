# SPDX-License-Identifier: Apache-2.0
"""`opforge bench --jobs`: the same rows from several processes, each timed alone."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace

import pytest
from bench_runs import write

from opforge.bench import results, rounds


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the workers, too: the machine may be small, and its cores wanted by others."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.mark.nightly
def test_rows_and_their_order_are_those_of_a_single_process(bench, tmp_path):
    folder = write(tmp_path, "doubling", doubler="lambda: lambda x: x + x", absent="lambda: 1 / 0")
    what = [folder, "vector_add", "--shapes", "8x8", "--backward", "--peers",
            "eager,doubler,absent"]  # fmt: skip
    for jobs in (1, 2):
        done = bench(*what, "--jobs", jobs, "--json", tmp_path / f"{jobs}.json")
        assert done.code == 0, done.out + done.err
    one, two = (results.read(tmp_path / f"{jobs}.json") for jobs in (1, 2))
    assert {(r.op, r.direction, r.implementation) for r in one.rows} >= {
        ("doubling", "backward", "doubler"),
        ("vector_add", "forward", "eager"),
    }

    def facts(row: results.Row) -> tuple[object, ...]:
        return row.key, row.error, row.note, row.bytes, row.us is None

    assert [facts(row) for row in two.rows] == [facts(row) for row in one.rows]
    runs = [*one.runs.values(), *two.runs.values()]
    assert len(runs) == 2
    assert runs[0]["method"] == runs[1]["method"]


# --- who is timed is alone ------------------------------------------------------------------------

STEPS = ["__init__", "_admit", "_judge", "_take_turns", "_doubt", "_judge", "_disbelieve"]
# A worker writes down what it does when, by the clock of the machine and by its own CPU time.
NOTING = """\
import os, sys, time
from opforge.bench.measure import _Measurement

def noted(name):
    inner = getattr(_Measurement, name)
    def outer(self, *arguments):
        start = time.monotonic(), time.process_time()
        try:
            return inner(self, *arguments)
        finally:
            with open({log!r}, "a") as file:
                print(os.getpid(), name, *start, time.monotonic(), time.process_time(), file=file)
    setattr(_Measurement, name, outer)

if sys.argv[0].endswith("worker.py"):
    for name in {steps}:
        noted(name)

def slow():
    time.sleep(1.0)  # as compiling takes its time
    return lambda x: x + x
"""


@dataclass(frozen=True)
class Step:
    process: str
    name: str
    start: float
    cpu_start: float
    end: float
    cpu_end: float

    def beside(self, other: Step) -> bool:
        return self.start < other.end and other.start < self.end


@pytest.mark.nightly
def test_nothing_runs_beside_what_is_timed(bench, tmp_path):
    log = tmp_path / "log"
    before = NOTING.format(log=str(log), steps=sorted(set(STEPS)))
    folder = write(tmp_path, "noting", before, slow="slow")
    done = bench(folder, "--shapes", "8x8,8x16,8x32,8x64,8x128", "--peers", "slow", "--jobs", 2)
    assert done.code == 0, done.out + done.err
    lines = [line.split() for line in log.read_text().splitlines()]
    steps = sorted(
        (Step(*line[:2], *map(float, line[2:])) for line in lines), key=lambda s: s.start
    )
    processes = {step.process for step in steps}
    assert len(processes) == 2  # they stay

    preparing = []
    for process in processes:
        own = [step for step in steps if step.process == process]
        others = [step for step in steps if step.process != process]
        assert [step.name for step in own] == STEPS * (len(own) // len(STEPS))
        for at in range(0, len(own), len(STEPS)):
            make, admit, _, turns, doubt, judge, _ = own[at : at + len(STEPS)]
            preparing.append(replace(make, end=admit.end))
            alone = replace(turns, end=doubt.end)
            assert not [other for other in others if other.beside(alone)]
            # Who waits does not take a core.
            assert turns.cpu_start - admit.cpu_end < 0.2
            assert judge.cpu_start - doubt.cpu_end < 0.2
    assert len(preparing) == 5
    pairs = itertools.combinations(preparing, 2)
    assert len([pair for pair in pairs if pair[0].beside(pair[1])]) == 2  # the fifth is on its own


# --- what goes wrong in a worker ------------------------------------------------------------------

FATES = {
    "killed": ("os.kill(os.getpid(), 9)", "the process that measured it is gone: ended by SIGKILL"),
    "a lost GPU": (
        "raise torch.AcceleratorError('illegal access')",
        "unlucky forward: the GPU reports an error, and this process cannot use it any more",
    ),
}
UNLUCKY = """\
import os

def fate(x):
    if x.shape == (8, 16):
        {fate}
    return x + x
"""


@pytest.mark.nightly
@pytest.mark.parametrize("what", FATES)
def test_a_worker_that_is_lost_is_told_of_and_replaced(bench, tmp_path, what):
    fate, text = FATES[what]
    folder = write(tmp_path, "unlucky", UNLUCKY.format(fate=fate), other="lambda: fate")
    file = tmp_path / "r.json"
    done = bench(folder, "--shapes", "8x8,8x16,8x32,8x64", "--peers", "other", "--jobs", 2,
                 "--json", file)  # fmt: skip
    assert done.code == 2
    assert f"8 × 16, opforge: {text}" in done.out
    rows = results.read(file).rows
    assert [(r.shape, r.implementation) for r in rows] == [
        ((8, n), name) for n in (8, 16, 32, 64) for name in ("opforge", "other")
    ]
    for row in rows:
        assert (row.us is None) == (row.shape == (8, 16)), row
        assert row.error.startswith(text if row.shape == (8, 16) else ""), row


def test_a_worker_that_hangs_is_ended(monkeypatch):
    monkeypatch.setattr(rounds, "_SECONDS", 1.0)
    worker = rounds._Worker(1)  # waits for a message that does not come
    assert worker.receive() == "the process that measured it did not answer for 1 s"
    assert worker.ended
    assert worker._process.returncode == -signal.SIGKILL


def test_a_worker_that_cannot_start_ends_it_in_one_line(bench, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    done = bench("relu", "--shapes", "8x8,8x16", "--peers", "none", "--jobs", 2)
    assert done.code == 2
    assert done.err.endswith(
        "opforge: --jobs 2: a worker could not start: "
        "the process that measured it is gone: exit status 1\n"
    )


GREEDY = """\
import pathlib

def greedy(x):
    mark = pathlib.Path({folder!r}) / f"asked-{{x.shape[1]}}"
    if not mark.exists():
        mark.touch()
        raise torch.OutOfMemoryError("others have it")
    return x + x
"""


@pytest.mark.nightly
def test_what_lacks_memory_beside_others_is_measured_alone(bench, tmp_path):
    before = GREEDY.format(folder=str(tmp_path))
    folder = write(tmp_path, "greedy", before, other="lambda: greedy")
    what = [folder, "--shapes", "8x8,8x16", "--peers", "other", "--json", tmp_path / "r.json"]
    for jobs, errors in ((2, ["", ""]), (1, ["out of memory"] * 2)):
        for mark in tmp_path.glob("asked-*"):
            mark.unlink()
        done = bench(*what, "--jobs", jobs)
        assert done.code == 0, done.out + done.err
        rows = results.read(tmp_path / "r.json").rows
        assert [r.error for r in rows if r.implementation == "other"] == errors


SLEEPY = """\
import os, sys, time

def sleepy(x):
    if sys.argv[0].endswith("worker.py"):
        open({log!r}, "a").write(f"{{os.getpid()}}\\n")
        time.sleep(600)
    return x + x
"""


def test_ctrl_c_ends_the_workers_too(tmp_path):
    log = tmp_path / "log"
    log.touch()
    folder = write(tmp_path, "sleepy", SLEEPY.format(log=str(log)), other="lambda: sleepy")
    command = [sys.executable, "-m", "opforge", "bench", str(folder), "--on", "cpu", "--jobs", "2"]
    process = subprocess.Popen(
        [*command, "--shapes", "8x8,8x16", "--peers", "other"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # In a background job SIGINT is ignored, by all that is started there.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        while len(log.read_text().split()) < 2:
            assert process.poll() is None
            time.sleep(0.1)
        workers = [int(pid) for pid in log.read_text().split()]
        assert len(workers) == 2
        process.send_signal(signal.SIGINT)
        assert process.wait() != 0
    finally:
        process.kill()
        process.wait()
    for worker in workers:
        with pytest.raises(ProcessLookupError):
            os.kill(worker, 0)


@pytest.mark.parametrize("jobs", [0, -3])
def test_less_than_one_job_is_a_mistake(bench, jobs):
    done = bench("relu", "--shapes", "8x8", "--jobs", jobs)
    assert done.code == 2
    assert "Invalid value for '--jobs': " in done.err
