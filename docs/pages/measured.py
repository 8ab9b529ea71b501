# SPDX-License-Identifier: Apache-2.0
"""The parts of an op's page that come from benchmarks: memory, accuracy, speed, losses."""

from __future__ import annotations

import math

from opforge.bench.results import OURS, Results, Row
from opforge.op import Op
from opforge.report.markup import count, number
from opforge.report.series import Contest, believed, contests, grouped, share

from .data import (
    EAGER,
    LOSS,
    Data,
    implementations,
    largest,
    left_out,
    losses,
    provenance,
    timed,
    title,
)
from .notes import reason
from .text import enumerated, listed, prose, size, table

NOT_MEASURED = "Not measured yet.\n"
NO_REASON = "No reason written yet."
_SHAPE, _DTYPE = (8192, 8192), "bfloat16"  # one workload as an example, if it was measured
_NEAR_ZERO = 100  # ulps; larger errors do not come from rounding the result
_LESS_EXACT = "less exact than opforge check allows"  # begins a note of opforge bench


def origin(data: Data, op: Op) -> str:
    """Where the figures come from, in a sentence."""
    results = data.results.of(op.name)
    if not results.rows:
        return "Not measured yet."
    return (
        f"Measured on {provenance(results)}; [benchmarks.md](../benchmarks.md#measured-code) says "
        "which kernels have changed since."
    )


def memory(data: Data, op: Op) -> str:
    """Temporary memory, and memory saved for the backward, for every implementation."""
    rows = [r for r in data.results.of(op.name).rows if r.extra_bytes is not None and r.bytes]
    if not rows:
        return NOT_MEASURED
    rows = _one_dtype(rows)
    there = {r.shape for r in rows}
    shape = _SHAPE if _SHAPE in there else max(there, key=math.prod)
    rows = [r for r in rows if r.shape == shape]
    names = implementations(rows)
    lines = []
    for (direction, variant), same in grouped(rows, lambda r: (r.direction, r.variant)).items():
        by_name = {r.implementation: r for r in same}
        kinds = {"extra": "extra_bytes", "saved": "saved_bytes"}
        for word, field in kinds.items() if direction == "backward" else [("extra", "extra_bytes")]:
            values = [getattr(by_name[n], field) if n in by_name else None for n in names]
            cells = ["–" if v is None else size(v) for v in values]
            lines.append([f"{_pass(direction, variant)}, {word}", *cells])
    return prose(
        f"At {rows[0].size}, {rows[0].dtype}. Extra: peak memory beyond inputs and outputs. Saved: "
        "memory that the forward keeps for the backward, beyond inputs and outputs."
    ) + table(["", *names], lines)


def _one_dtype(rows: list[Row]) -> list[Row]:
    dtype = next((r.dtype for r in rows if r.dtype == _DTYPE), rows[0].dtype)
    return [r for r in rows if r.dtype == dtype]


def accuracy(data: Data, op: Op) -> str:
    """The largest errors over all shapes, of opforge and of eager."""
    rule = prose(
        "Distance from the float64 result, in units in the last place (ulp) of the dtype. "
        "[check.md](../check.md) defines the allowed error."
    )
    rows = [r for r in data.results.of(op.name).rows if r.ulp_max is not None and r.bytes]
    if not rows:
        return rule + NOT_MEASURED
    notes = []
    if any(r.dtype == "float64" for r in rows):
        notes.append("In float64 the truth is eager's own result, so eager's error is 0.")
    if any((r.ulp_max or 0) > _NEAR_ZERO for r in rows):
        notes.append(
            "Very large figures come from sums whose terms cancel: the result is near 0, where an "
            "ulp is much smaller than the rounding error of any term."
        )
    lines = []
    for (direction, variant), same in grouped(rows, lambda r: (r.direction, r.variant)).items():
        for dtype in _dtypes(op, same):
            cells = []
            for name in (OURS, EAGER):
                mine = [r for r in same if (r.implementation, r.dtype) == (name, dtype)]
                for what in ("ulp_max", "ulp_rms"):
                    values = [getattr(r, what) for r in mine if getattr(r, what) is not None]
                    cells.append(number(max(values), 3) if values else "–")
            lines.append([_pass(direction, variant), dtype, *cells])
    heads = ["pass", "dtype", "opforge, max", "opforge, rms", "eager, max", "eager, rms"]
    return rule + prose(*notes, "Largest errors over all shapes:") + table(heads, lines, first=2)


def _pass(direction: str, variant: str) -> str:
    return ", ".join(filter(None, [direction, variant]))


def _dtypes(op: Op, rows: list[Row]) -> list[str]:
    there = {r.dtype for r in rows}
    names = [str(d).removeprefix("torch.") for d in op.dtypes]
    return [n for n in names if n in there]


def speed(data: Data, op: Op) -> str:
    """A table for each pass, variant and dtype."""
    results = data.results.of(op.name)
    if not results.rows:
        return NOT_MEASURED
    parts = [
        prose(
            "The ceiling is measured on the same GPU in the same run: a copy of the same bytes, "
            "or, for an op that only reads, the faster of a copy and a read. The ratio is the time "
            "of the fastest alternative divided by opforge's: above 1, opforge is faster. "
            "[bench.md](../bench.md) explains the timing.",
            left_out(timed(results)),
        ),
        _host(results),
    ]
    found = [c for c in contests(results) if believed(c.ours)]
    ours = [r for r in results.rows if r.implementation == OURS]
    for (direction, variant), rows in grouped(ours, lambda r: (r.direction, r.variant)).items():
        parts.append(f"\n### {_pass(direction, variant).capitalize()}\n")
        still = [r.note for r in rows if r.us is None and not r.error]
        for note in dict.fromkeys(still):  # there is nothing to time
            parts.append(f"\n{note[:1].upper()}{note[1:]}.\n")
        for dtype in _dtypes(op, rows):
            wanted = (direction, variant, dtype)
            same = [c for c in found if (c.ours.direction, c.ours.variant, c.ours.dtype) == wanted]
            same.sort(key=lambda c: (largest(op, *_workload(c.ours)), c.ours.shape))
            if same:
                parts.append(f"\n{dtype}:\n\n{_table(same)}")
    return "".join(parts) + not_timed(results)


def _workload(row: Row) -> tuple[str, str, tuple[int, ...]]:
    return row.variant, row.dtype, row.shape


def _table(found: list[Contest]) -> str:
    lines = []
    for c in found:
        ours, reached = c.ours, share(c.ours)
        rate = "" if ours.gb_per_s is None else f"{ours.gb_per_s:.0f}"
        percent = "" if reached is None else f"{100 * reached:.0f}"
        line = [ours.size, number(ours.us), rate, percent]
        lines.append([*line, *(_versus(c) if c.other else ["", "", ""])])
    heads = ["shape", "µs", "GB/s", "% of ceiling", "fastest alternative, µs", "ratio", "which"]
    return table(heads, lines, last=-1)


def _versus(contest: Contest) -> list[str]:
    """Time of the fastest alternative, its ratio to opforge's, its name and remarks on it."""
    other = contest.other
    assert other is not None
    marks = ["less exact"] if other.note.startswith(_LESS_EXACT) else []
    marks += ["another run"] if other.run != contest.ours.run else []
    name = other.implementation + (f" ({', '.join(marks)})" if marks else "")
    return [number(other.us), f"{contest.ratio:.2f}×", name]


def _host(results: Results) -> str:
    """The CPU time of a call at a shape where the GPU has almost nothing to do."""
    rows = [r for r in results.rows if r.host_us is not None]
    if not rows:
        return ""
    smallest = min({r.shape for r in rows}, key=math.prod)
    rows = _one_dtype([r for r in rows if r.shape == smallest])
    names = implementations(rows)
    lines = []
    for (direction, variant), same in grouped(rows, lambda r: (r.direction, r.variant)).items():
        by_name = {r.implementation: f"{r.host_us:.1f}" for r in same}
        lines.append([_pass(direction, variant), *(by_name.get(n, "–") for n in names)])
    where = f"{rows[0].size}, {rows[0].dtype}"
    return prose(f"Host time per call, µs, at {where}:") + table(["pass", *names], lines)


def not_timed(results: Results) -> str:
    """Rows without a valid time, and why, a line for each kind."""
    failed = [r for r in results.rows if r.error]
    if not failed:
        return ""
    lines = []
    groups = grouped(failed, lambda r: (r.title, r.dtype, r.implementation))
    for (name, dtype, who), rows in groups.items():
        many = "" if len(rows) == 1 else f", and {count(len(rows) - 1, 'other shape')}"
        lines.append(f"{name}, {dtype}, {who}: {rows[0].error} ({rows[0].size}{many})")
    return "\nNot timed, or time rejected:\n\n" + listed(lines)


def known_losses(data: Data, op: Op) -> str:
    """Every workload that is lost by more than 2%, with the reason."""
    results = data.results.of(op.name)
    if not results.rows:
        return NOT_MEASURED
    compared = sum(c.ratio is not None for c in contests(results))
    found = losses(results)
    limit = f"more than {LOSS - 1:.0%}"
    if not found:
        return f"None. No alternative is faster by {limit} in any of {compared} workloads.\n"
    parts = [prose(f"An alternative is faster by {limit} in {len(found)} of {compared} workloads.")]
    groups = grouped(found, lambda c: (c.ours.direction, c.ours.variant, reason(c, op)))
    for (direction, variant, why), members in groups.items():
        lines = [
            [c.ours.dtype, c.ours.size, number(c.ours.us), *_versus(c)] for c in members if c.other
        ]
        heads = ["dtype", "shape", "opforge, µs", "alternative, µs", "ratio", "which"]
        parts.append(prose(f"{_pass(direction, variant).capitalize()}. {why or NO_REASON}"))
        parts.append(table(heads, lines, first=2, last=-1) + "\n")
    return "".join(parts).rstrip() + "\n"


def loss_summary(data: Data) -> str:
    """How often each pass loses and how much at worst; then every reason, and where it holds."""
    ours = data.of(data.ops)
    lost_by = grouped(losses(ours), lambda c: title(c.ours))
    lines, where = [], dict[str, dict[str, int]]()
    for name, members in grouped(contests(ours), lambda c: title(c.ours)).items():
        lost = lost_by.get(name)
        if not lost:
            continue
        op = lost[0].ours.op
        compared = sum(c.ratio is not None for c in members)
        who = dict.fromkeys(c.other.implementation for c in lost if c.other)
        link = f"[{name}](ops/{op}.md#known-losses)"
        lines.append(
            [link, f"{len(lost)} of {compared}", f"{lost[0].ratio:.2f}×", enumerated(list(who))]
        )
        for c in lost:
            found = where.setdefault(reason(c, data.ops[op]) or NO_REASON, {})
            found[name] = found.get(name, 0) + 1
    if not lines:
        return "None.\n"
    reasons = []
    for text, found in where.items():
        places = [f"{name} ({many})" for name, many in found.items()]
        reasons.append(f"{text} Applies to {'; '.join(places)}.")
    return (
        table(["where", "lost", "worst ratio", "faster alternative"], lines, last=-1)
        + "\nReasons, with the number of workloads:\n\n"
        + listed(reasons)
    )


def loss_count(data: Data) -> str:
    """How many workloads of each op are lost, in a sentence."""
    parts = []
    for name in data.ops:
        results = data.results.of(name)
        if compared := sum(c.ratio is not None for c in contests(results)):
            parts.append(f"{name} {len(losses(results))} of {compared}")
    return (
        f"Workloads where the fastest alternative is faster by more than {LOSS - 1:.0%}: "
        f"{', '.join(parts)}."
    )
