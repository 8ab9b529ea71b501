# SPDX-License-Identifier: Apache-2.0
"""The table and the picture of docs/ladder.md, from results that are made up."""

from __future__ import annotations

from pathlib import Path

import pytest

from opforge import discover
from opforge.bench.results import OURS, Results, Row

ROOT = Path(__file__).parents[2]
PROVENANCE = {"date": "2026-01-01 00:00", "gpu": "GPU", "driver": "1", "torch": "2", "commit": "c"}
SPEEDS = {"naive": 1.0, "tiled": 8.0, "hopper": 400.0}  # TFLOP/s


def rows(size: int) -> list[Row]:
    operations = 2 * size**3
    speeds = [*((OURS, *s) for s in SPEEDS.items()), ("eager", "naive", 500.0)]
    return [
        Row(
            *("matmul", "forward", variant, "bfloat16", (size, size, size), who, "run"),
            us=operations / speed / 1e6,
            operations=operations,
        )
        for who, variant, speed in speeds
    ]


def test_rungs_of_the_largest_shape_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    from pages import ladder
    from pages.data import Data

    results = Results([*rows(512), *rows(1024)], {"run": PROVENANCE})
    data = Data({"matmul": discover.find("matmul")}, {}, results, [])
    part = ladder.part(data)
    assert "bfloat16, 1024 × 1024 × 1024" in part
    assert "512" not in part
    assert "| naive | 1 |  | 0% |" in part
    assert "| tiled | 8 | 8.00× | 2% |" in part
    assert "| hopper | 400 | 50.00× | 80% |" in part
    picture = ladder.picture(data)
    assert picture is not None
    assert all(name in picture.text for name in (*SPEEDS, "eager", "400 TFLOP/s"))


def test_without_results_there_is_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    from pages import ladder
    from pages.data import Data

    data = Data({"matmul": discover.find("matmul")}, {}, Results([], {}), [])
    assert ladder.part(data) == "Not measured yet.\n"
    assert ladder.picture(data) is None
