# SPDX-License-Identifier: Apache-2.0
"""Ops that cheat in a benchmark: tests/cheats has one for each way, and an honest one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import PATIENCE

from opforge.bench import results

CHEATS = Path(__file__).parents[1] / "cheats"
CAUGHT = (
    "cheats: right when it was checked, wrong when it was timed and its inputs had just changed: "
)
CHANGED, REPLACED = "cheats: it changes its inputs", "cheats: {}, a clock, has been replaced"
ELSEWHERE = "cheats: its work goes on after its stream is done, on another stream or thread"
FLAGGED = {  # on the CPU
    "stale_output": CAUGHT,
    "side_stream": (CAUGHT, "wrong: "),  # by whether its thread was done when it was checked
    "remembered_answer": CAUGHT,
    "input_mutation": CHANGED,
    "out_of_bounds": "cheats: it writes outside of its tensors: a canary beside an input is gone",
    "patched_timer": REPLACED.format("time.perf_counter_ns"),
}


def child(*arguments: object) -> subprocess.CompletedProcess[str]:
    """The same in a process of its own, for ops that do more harm."""
    code = """if True:
        from opforge.bench import clock, runner
        from opforge.cli import main
        runner._SECONDS, clock._last_level_cache = 0.1, lambda: 1 << 20
        main()
        """
    return subprocess.run(
        [sys.executable, "-c", code, "bench", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**os.environ, "COLUMNS": "200", "OMP_NUM_THREADS": "1"},
    )


def rows_of(file: Path) -> dict[str, results.Row]:
    """The rows of a file by implementation; it has one workload."""
    (rows,) = results.read(file).workloads().values()
    return rows


def test_the_cheats_of_the_list_are_all_tried():
    folders = {f.parent.name for f in CHEATS.glob("*/op.py")}
    assert folders == {*FLAGGED, "honest"}
    promised = {"stale_output", "side_stream", "input_mutation", "patched_timer"}
    promised.add("remembered_answer")
    assert promised <= {f.parent.name for f in CHEATS.glob("*/cuda.cu")}


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """Exit code and error of every cheat; in child processes, the one with the clocks alone."""
    found = {}
    together = [name for name in FLAGGED if name != "patched_timer"]
    for names in (together, ["patched_timer"]):
        file = tmp_path_factory.mktemp("cheats") / "r.json"
        done = child(*[CHEATS / name for name in names], "--shapes", "512x1024", "--peers", "none",
                     "--on", "cpu", "--json", file)  # fmt: skip
        found |= {r.op: (done.returncode, r.error) for r in results.read(file).rows}
    return found


@pytest.mark.nightly
@pytest.mark.parametrize("name", FLAGGED)
def test_a_cheat_is_flagged_for_what_it_does(judged, name):
    code, error = judged[name]
    assert error.startswith(FLAGGED[name])
    assert code == 1


@pytest.mark.nightly
def test_honest_ops_are_not_flagged():
    done = child(CHEATS / "honest", "relu", "--shapes", "512x1024", "--peers", "none",
                 "--on", "cpu", "--backward")  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("opforge") == 4
    for word in ("cheats", "wrong", "impossible", "–"):
        assert word not in done.stdout


@pytest.mark.cuda
@pytest.mark.parametrize("name", [f.parent.name for f in sorted(CHEATS.glob("*/cuda.cu"))])
def test_a_cheat_on_a_gpu_is_flagged_for_what_it_does(tmp_path, name):
    file = tmp_path / "r.json"
    done = subprocess.run(
        [sys.executable, "-m", "opforge", "bench", str(CHEATS / name), "--on", "cuda",
         "--shapes", "8192x8192", "--peers", "eager", "--json", str(file)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )  # fmt: skip
    said = done.stdout + done.stderr
    error = rows_of(file)["opforge"].error
    if name == "honest":
        assert done.returncode == 0, said
        assert error == ""
        return
    assert done.returncode == 1, said
    expected = (ELSEWHERE, CAUGHT) if name == "side_stream" else FLAGGED[name]
    assert error.startswith(expected), said
