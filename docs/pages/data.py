# SPDX-License-Identifier: Apache-2.0
"""The input of the pages: records, committed benchmark results, check reports."""

from __future__ import annotations

import functools
import statistics
from dataclasses import dataclass
from pathlib import Path

import torch

from opforge.bench import shapes
from opforge.bench.inputs import DeviceMake
from opforge.bench.results import OURS, Results, Row
from opforge.check.results import Report
from opforge.discover import builtin_names, find
from opforge.op import Op, sum_of_bytes
from opforge.report.load import load as load_results
from opforge.report.series import Contest, believed, contests

from . import scores
from .text import enumerated

ROOT = Path(__file__).parents[2]
MEASURED = ROOT / "benchmarks" / "results" / "h200"
LARGE = 128e6  # bytes of a tensor that fits into no cache
LOSS = 1.02  # opforge's time over the fastest alternative's; from here on it is a loss
EAGER, COMPILED = "eager", "torch.compile"


@dataclass(frozen=True)
class Data:
    """Everything, read once."""

    ops: dict[str, Op]  # the built-in ones
    yardsticks: dict[str, Op]  # without a kernel of opforge; they show what others reach
    results: Results
    reports: list[Report]

    def is_large(self, row: Row) -> bool:
        """Whether the largest tensor of a workload has 128 MB or more."""
        record = {**self.ops, **self.yardsticks}[row.op]
        return largest(record, row.variant, row.dtype, row.shape) >= LARGE

    def of(self, names: dict[str, Op]) -> Results:
        """The results of some ops."""
        rows = [r for r in self.results.rows if r.op in names]
        return Results(rows, {r.run: self.results.runs[r.run] for r in rows})


def load() -> Data:
    """From the files of the repository."""
    results, _ = load_results([MEASURED])
    ops = {name: find(name) for name in builtin_names()}
    others = dict.fromkeys(r.op for r in results.rows if r.op not in ops)
    yardsticks = {name: find(str(ROOT / "benchmarks" / "ops" / name)) for name in others}
    # Files have rows in the order of measuring, pages in the order of the records.
    every = {**ops, **yardsticks}
    names = list(every)
    results.rows.sort(
        key=lambda r: (names.index(r.op), r.direction != "forward", _place(every[r.op], r))
    )
    return Data(ops, yardsticks, results, scores.reports())


def _place(record: Op, row: Row) -> tuple[int, int]:
    """Of a row's variant and dtype in its record."""
    variants = list(shapes.arguments(record, _meta(row.dtype), row.shape))
    dtypes = [str(d).removeprefix("torch.") for d in record.dtypes]
    return variants.index(row.variant), dtypes.index(row.dtype)


def title(row: Row) -> str:
    """``reduce_sum, forward, last dim``."""
    return ", ".join(part for part in (row.op, row.direction, row.variant) if part)


@functools.cache
def largest(record: Op, variant: str, dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes of the largest tensor among the arguments of a workload."""
    case = shapes.arguments(record, _meta(dtype), shape)[variant]
    return max(sum_of_bytes([a]) for a in case if isinstance(a, torch.Tensor))


def _meta(dtype: str) -> DeviceMake:
    """Makes tensors that take no memory."""
    return DeviceMake(getattr(torch, dtype), "meta")


def implementations(rows: list[Row]) -> list[str]:
    """The columns of a table: opforge, those that every op has, and the peers."""
    there = {r.implementation for r in rows}
    first = [OURS, COMPILED, EAGER]
    return [n for n in first if n in there] + sorted(there - set(first))


def left_out(rows: list[Row]) -> str:
    """A sentence with those not timed in every dtype, because their ranges cover less."""
    every = list(dict.fromkeys(r.dtype for r in rows))
    some: dict[tuple[str, ...], list[str]] = {}
    for name in implementations(rows):
        mine = {r.dtype for r in rows if r.implementation == name}
        if len(mine) < len(every):
            some.setdefault(tuple(d for d in every if d in mine), []).append(name)
    return " ".join(
        f"{enumerated(who)}: only {enumerated(dtypes)}." for dtypes, who in some.items()
    )


def losses(results: Results) -> list[Contest]:
    """Every workload where the fastest alternative is faster by more than 2%, worst first."""
    found = [c for c in contests(results) if c.ratio is not None and c.ratio < 1 / LOSS]
    return sorted(found, key=lambda c: c.ratio or 0.0)


def apart(results: Results) -> str:
    """How many workloads compare times from different runs, in a sentence."""
    found = [c for c in contests(results) if c.ratio is not None]
    pairs = [(c.ours, c.other) for c in found if c.other and c.other.run != c.ours.run]
    copies = [
        abs(ours.ceiling_us / other.ceiling_us - 1)
        for ours, other in pairs
        if ours.ceiling_us and other.ceiling_us and ours.ceiling == other.ceiling
    ]
    if not copies:
        return ""
    ops = enumerated(sorted({ours.op for ours, _ in pairs}))
    return (
        f"In {len(pairs)} of {len(found)} workloads ({ops}), opforge and the fastest alternative "
        "were measured in different runs, each with its own ceiling. The two ceilings differ by "
        f"{100 * statistics.median(copies):.1f}% in the median, and by more than 2% in "
        f"{sum(c > 0.02 for c in copies)} workloads."
    )


def provenance(results: Results) -> str:
    """Machine, software, commits and dates of the figures."""
    runs = results.runs.values()

    def all_of(key: str, length: int | None = None) -> str:
        return ", ".join(sorted({str(r.get(key, "?"))[:length] for r in runs}))

    return (
        f"{all_of('gpu')}, driver {all_of('driver')}, torch {all_of('torch')}, "
        f"commit {all_of('commit')}, {all_of('date', 10)}"
    )


def timed(results: Results) -> list[Row]:
    """Rows with a valid time."""
    return [r for r in results.rows if believed(r)]
