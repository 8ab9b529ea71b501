# SPDX-License-Identifier: Apache-2.0
"""A gross slowdown is noticed: some of the ops on the CPU beside committed shares of a copy."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import PATIENCE

# Made with the same options and --json. Shares of a copy in the same run hold on other machines,
# too, but the limit is wide: two cores that others use as well.
COMMITTED = Path(__file__).parents[2] / "benchmarks" / "smoke" / "cpu.json"
OPTIONS = ["--on", "cpu", "--backward", "--shapes", "512x2048", "--peers", "none"]


@pytest.mark.nightly
def test_no_op_is_much_slower_on_the_cpu_than_it_was() -> None:
    ops = sorted({row["op"] for row in json.loads(COMMITTED.read_text())["rows"]})
    command = [sys.executable, "-m", "opforge", "bench", *ops, *OPTIONS]
    command += ["--against", str(COMMITTED), "--fail-below", "0.35"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the same" in done.stdout
