# SPDX-License-Identifier: Apache-2.0
"""The page of the CPU kernels: both passes together, against eager and torch.compile."""

from __future__ import annotations

from opforge.bench.results import OURS, Results, Row
from opforge.report.load import load as load_results
from opforge.report.series import believed, grouped

from .data import COMPILED, EAGER, ROOT
from .text import GENERATED, prose, table

MEASURED = ROOT / "benchmarks" / "results" / "cpu"


def page() -> str:
    """A line for each op and variant that was timed."""
    results, _ = load_results([MEASURED])
    return (
        f"# CPU kernels\n\n{GENERATED}"
        + prose(
            f"`opforge bench --on cpu --backward`, {_where(results)}. Times are milliseconds for",
            "forward and backward together. The implementations take turns in one run, caches are",
            "flushed before every turn, and results are compared with float64. A speed above 1",
            "means that opforge is faster.",
        )
        + table(
            ["op", "shape", "dtype", OURS, EAGER, "speed", COMPILED, "speed"],
            [_line(rows) for rows in _both_passes(results)],
            first=3,
        )
        + "\n"
        + prose(
            "Where eager PyTorch has a single kernel (softmax and layer_norm, plain), there is",
            "little to gain. Where it runs several, one pass over memory replaces them.",
            "Dropout is compared with the same formula in PyTorch, including the generator.",
        )
    )


def _where(results: Results) -> str:
    runs = results.runs.values()
    facts = [", ".join(sorted({str(r.get(k, "?"))[:n] for r in runs})) for k, n in _FACTS]
    return f"{facts[0]}, torch {facts[1]}, commit {facts[2]}, {facts[3]}"


_FACTS = (("cpu", None), ("torch", None), ("commit", None), ("date", 10))


def _both_passes(results: Results) -> list[list[Row]]:
    """The rows of each workload that has valid times for both passes."""
    found = grouped(results.rows, lambda r: (r.op, r.variant, r.dtype, r.shape)).values()
    return [rows for rows in found if _milliseconds(rows, OURS) is not None]


def _milliseconds(rows: list[Row], who: str) -> float | None:
    times = {r.direction: r.us for r in rows if r.implementation == who and believed(r) and r.us}
    return sum(times.values()) / 1e3 if len(times) == 2 else None


def _line(rows: list[Row]) -> list[str]:
    row = rows[0]
    ours = _milliseconds(rows, OURS)
    assert ours is not None
    cells = [", ".join(filter(None, (row.op, row.variant))), row.size, row.dtype, f"{ours:.1f}"]
    for who in (EAGER, COMPILED):
        theirs = _milliseconds(rows, who)
        cells += ["–", "–"] if theirs is None else [f"{theirs:.1f}", f"{theirs / ours:.2f}×"]
    return cells
