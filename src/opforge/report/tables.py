# SPDX-License-Identifier: Apache-2.0
"""The tables of all measurements, and the environments of the runs."""

from __future__ import annotations

from typing import Any

from opforge.bench.results import Results, Row
from opforge.check.results import Report
from opforge.report.markup import Html, count, details, join, number, percent, table, tag
from opforge.report.series import grouped

_HEADS = (
    "pass",
    "variant",
    "dtype",
    "shape",
    "implementation",
    "µs (95% interval)",
    "GB/s",
    "TFLOP/s",
    "share of ceiling",
    "ceiling, µs",
    "host µs",
    "extra MB",
    "kept MB",
    "ulp max",
    "ulp rms",
    "notes",
)


def measurements(results: Results) -> Html:
    """Make a table for each op. Rows without a valid time say why."""
    if not results.rows:
        return Html("")
    wrong = sum(bool(r.error) for r in results.rows)
    text = (
        "Times are medians over turns. GB/s and TFLOP/s count the necessary bytes and operations, "
        "not those of the implementation. Extra memory is the peak beyond inputs and outputs. Kept "
        "memory is saved for the backward. "
    )
    if wrong:
        text += f"{wrong} of {len(results.rows)} rows, marked ✗, have no valid time."
    parts: list[object] = [tag("p", text)]
    for op, found in grouped(results.rows, lambda r: r.op).items():
        failed = sum(bool(r.error) for r in found)
        size = count(len(found), "row") + (f", ✗ {failed} without a valid time" if failed else "")
        lines = [_cells(r) for r in found]
        whole = table(
            _HEADS, lines, numbers_from=6, words_last=True, label=f"Rows of {op}", sortable=True
        )
        parts.append(details(join([tag("b", op), f": {size}"]), whole))
    return join(parts)


def _cells(row: Row) -> list[object]:
    time = number(row.us)
    if row.us is not None and row.low is not None and row.high is not None:
        time += f" ({number(row.low)} – {number(row.high)})"
    if row.error:  # the reason is in the last column, which may be out of sight
        time = f"✗ {time or 'not timed'}"
    ceiling = f"{row.ceiling} {number(row.ceiling_us)}" if row.ceiling_us else row.ceiling
    error = tag("b", f"✗ {row.error}", class_="bad") if row.error else ""
    notes = join([part for part in (error, row.note) if part], "; ")
    return [
        row.direction,
        row.variant,
        row.dtype,
        row.size,
        row.implementation,
        tag("td", time, title=_circumstances(row) or None, class_="bad" if row.error else None),
        number(row.gb_per_s),
        number(row.tflop_per_s),
        percent(row.share),
        ceiling,
        number(row.host_us, 3),
        _megabytes(row.extra_bytes),
        _megabytes(row.saved_bytes),
        number(row.ulp_max, 3),
        number(row.ulp_rms, 3),
        notes,
    ]


def _circumstances(row: Row) -> str:
    """The number of measurements, and the state of the machine during them."""
    words = [f"{row.turns} × {row.calls} calls"] if row.turns else []
    if row.spread is not None:
        words.append(f"spread {percent(row.spread)}")
    return ", ".join(words + [f"{k} {v}" for k, v in row.state.items() if v not in ("", None)])


def _megabytes(count: int | None) -> str:
    return "" if count is None else number(count / 1e6, 3)


def environment(results: Results, reports: list[Report]) -> Html:
    """Make the section with the environment of each run and check."""
    parts = []
    for run, facts in results.runs.items():
        rows = count(sum(r.run == run for r in results.rows), "row")
        parts += [tag("h3", f"Benchmark run {run}: {rows}"), _facts(facts)]
    for report in reports:
        ops = ", ".join(o.op for o in report.ops)
        parts += [tag("h3", f"Check of {ops}"), _facts(report.facts)]
    return join(parts)


def _facts(facts: dict[str, Any]) -> Html:
    pairs = [join([tag("dt", k), tag("dd", v)]) for k, v in facts.items() if v not in ("", None)]
    return tag("dl", *pairs)
