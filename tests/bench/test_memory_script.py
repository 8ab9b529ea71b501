# SPDX-License-Identifier: Apache-2.0
"""benchmarks/memory.py measures each choice of linear_cross_entropy, here at a small shape."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from helpers import PATIENCE

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "memory.py"


def test_every_implementation_has_a_row(tmp_path):
    out = tmp_path / "memory.json"
    where = ["--device", "cpu", "--shapes", "64x32x512", "--json", str(out)]
    command = [sys.executable, str(SCRIPT), *where, "--chunks", "0", "16", "--repeats", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    rows = {row["implementation"]: row for row in json.loads(out.read_text())["rows"]}
    names = ["opforge", "opforge, chunk 16", "opforge, low_memory", "opforge, low_memory, chunk 16"]
    assert list(rows) == [*names, "liger", "eager"]
    for name in (*names, "eager"):
        row = rows[name]
        assert row["ms"] > 0
        assert row["peak_bytes"] >= (64 + 512) * 32 * 2  # the gradients
        assert 0 < row["error"] < 1e-2
        assert f"{name} " in done.stdout
    assert rows["eager"]["peak_bytes"] >= 64 * 512 * 2  # all logits
