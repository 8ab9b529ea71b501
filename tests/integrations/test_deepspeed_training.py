# SPDX-License-Identifier: Apache-2.0
"""A transformer of opforge ops under ZeRO, in two processes: its losses are those of torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers import PATIENCE

WORKER = Path(__file__).parent / "zero_worker.py"
Losses = tuple[list[list[float]], list[float]]


def train(folder: Path, runs: list[dict[str, Any]]) -> Losses:
    """The losses of each run, and of plain PyTorch. All runs share two processes."""
    # The processes meet in a file. Gloo opens its ports on the loopback interface alone.
    command = [sys.executable, "-W", "ignore", str(WORKER)]
    started = [
        subprocess.Popen(
            [*command, str(rank), str(folder / "store"), json.dumps(runs)],
            env={**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in (0, 1)
    ]
    try:
        said = [process.communicate(timeout=PATIENCE)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0, 0], "\n".join(said)
    line = next(line for line in said[0].splitlines() if line.startswith("losses "))
    found = json.loads(line.removeprefix("losses "))
    return found["zero"], found["plain"]


def expect_equal(runs: list[dict[str, Any]], found: Losses) -> None:
    zero, plain = found
    assert plain[-1] < 0.8 * plain[0], "the network learns"
    for run, losses in zip(runs, zero, strict=True):
        assert losses == pytest.approx(plain, rel=1e-6), run


def test_losses_under_zero_equal_those_of_plain_pytorch(tmp_path) -> None:
    runs = [{"stage": stage} for stage in (1, 2, 3)]
    runs += [{"stage": 3, "checkpoint": True}, {"stage": 2, "compiler": "aot_eager"}]
    expect_equal(runs, train(tmp_path, runs))


@pytest.mark.nightly
def test_losses_are_equal_under_inductor_and_with_checkpoints(tmp_path) -> None:
    runs = [
        {"stage": stage, "compiler": "inductor", "checkpoint": checkpoint}
        for stage in (1, 2, 3)
        for checkpoint in (False, True)
    ]
    expect_equal(runs, train(tmp_path, runs))
