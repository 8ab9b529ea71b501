# SPDX-License-Identifier: Apache-2.0
"""Prints benchmark results on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from opforge.bench.results import OURS, Change, Results, Row, best_other, overlap
from opforge.terminal.output import say, show_table, width

LEGEND = (
    "MB and Mop: the bytes and operations that the op needs, from its record. %: share of the "
    "ceiling, which is a copy of the same bytes in the same run (for ops that only read, the "
    "faster of copying and reading; for matrix work, the library's matrix product). ±: 95% "
    "confidence interval of the median. host: time of the CPU per call."
)

_FIRST = ("shape", "MB", "Mop")  # columns on the first line of a workload
_HEADS = (*_FIRST, "", "µs", "±", "GB/s", "TFLOP/s", "%", "speed", "host µs", "extra MB")
# Columns that a narrow terminal leaves out, in this order.
_DISPENSABLE = ("extra MB", "Mop", "MB", "TFLOP/s", "GB/s", "host µs", "±")


def on_console(results: Results, out: Console) -> None:
    """Print a table for each op, pass and dtype, with opforge first and its speed."""
    groups: dict[tuple[str, str], list[dict[str, Row]]] = {}
    for rows in results.workloads().values():
        first = next(iter(rows.values()))
        groups.setdefault((first.title, first.dtype), []).append(rows)
    for (title, dtype), workloads in groups.items():
        out.print(f"[bold]{escape(title)}[/], {dtype}", highlight=False)
        if any(r.us or r.error for rows in workloads for r in rows.values()):
            _show_table(workloads, out)
        for row in (r for rows in workloads for r in rows.values() if r.error):
            text = f"  {row.size}, {row.implementation}: {row.error}"
            say(out, text, "red")
        notes: dict[str, list[Row]] = {}
        for row in (r for rows in workloads for r in rows.values() if r.note):
            notes.setdefault(row.note, []).append(row)
        for note, some in notes.items():
            whose = f"{some[0].size}, {some[0].implementation}: " if len(some) == 1 else ""
            say(out, f"  {whose}{note}")
        out.print()
    if results.rows:
        out.print(LEGEND, highlight=False, style="dim")


def _show_table(workloads: Sequence[dict[str, Row]], out: Console) -> None:
    """Print the columns that fit. Columns are left out rather than cut."""
    left_out: list[str] = []
    table = _table(workloads)
    for head in _DISPENSABLE:
        if width(out, table) <= out.width:
            break
        left_out.append(head)
        table = _table(workloads, left_out)
    show_table(out, table)
    if left_out:
        say(out, f"no room for {', '.join(left_out)}: in a wider terminal, a pipe, and --json")


def _table(workloads: Sequence[dict[str, Row]], left_out: Sequence[str] = ()) -> Table:
    lines = [(rows, best_other(rows.values())) for rows in workloads]
    cells = []
    for rows, best in lines:
        of_one = [_cells(row, best) for row in rows.values()]
        first = next(iter(rows.values()))
        of_one[0]["shape"] = first.size
        of_one[0]["MB"] = _millions(first.bytes)
        of_one[0]["Mop"] = _millions(first.operations)
        cells += of_one
    if not any(r.ceiling == "product" for rows in workloads for r in rows.values()):
        for line in cells:
            line["TFLOP/s"] = ""
    columns = [h for h in _HEADS if h not in left_out and any(line[h] for line in cells)]
    table = Table(box=None, pad_edge=False)
    for head in columns:
        left = head in ("shape", "", "speed")
        table.add_column(head, justify="left" if left else "right", no_wrap=True)
    for line in cells:
        table.add_row(*[line[h] for h in columns], style="bold" if line[""] == OURS else None)
    return table


def _cells(row: Row, best: Row | None) -> dict[str, str]:
    if row.us is None or row.error:
        return {
            **dict.fromkeys(_HEADS, ""),
            "": row.implementation,
            "µs": "–",
        }
    uncertainty = 50 * ((row.high or 0) - (row.low or 0)) / row.us if row.us else 0.0
    return {
        **dict.fromkeys(_FIRST, ""),
        "": row.implementation,
        "µs": f"{row.us:.2f}" if row.us < 1000 else f"{row.us:.0f}",
        "±": f"{uncertainty:.1f}%",
        "GB/s": _number(row.gb_per_s, ".0f"),
        "TFLOP/s": _number(row.tflop_per_s, ".1f"),
        "%": _number(None if row.share is None else 100 * row.share, ".0f"),
        "speed": _speed(row, best),
        "host µs": _number(row.host_us, ".1f"),
        "extra MB": _number(None if row.extra_bytes is None else row.extra_bytes / 1e6, ".3g"),
    }


def _speed(row: Row, best: Row | None) -> str:
    """The speed relative to the fastest other, unless they are within the noise."""
    if row.implementation != OURS or best is None or not best.us or not row.us:
        return ""
    if overlap(row, best):
        return f"{escape(best.implementation)}, within the noise"
    ratio = best.us / row.us
    colour = "green" if ratio >= 0.98 else "yellow" if ratio >= 0.9 else "red"
    return f"[{colour}]{ratio:.2f}×[/] {escape(best.implementation)}"


def _millions(count: int) -> str:
    return f"{count / 1e6:.0f}" if count >= 1e8 else f"{count / 1e6:.3g}" if count else ""


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def changes(
    found: Sequence[Change], lost: Sequence[Row], out: Console, fail_below: float | None
) -> bool:
    """Print what got slower, faster or lost its time. Returns whether that is a fault."""
    for row in lost:
        text = f"no time any more: {row.title}, {row.dtype}, {row.size}: {row.error}"
        say(out, text, "red")
    least = {c.row.key: 1 - c.noise if fail_below is None else fail_below for c in found}
    faults = [c for c in found if c.ratio < least[c.row.key]]
    worse = [c for c in found if c.ratio < max(1 - c.noise, least[c.row.key])]
    better = [c for c in found if c.ratio > 1 + c.noise]
    for word, some in (("slower", worse), ("faster", better)):
        for c in sorted(some, key=lambda c: c.ratio):
            row = c.row
            text = (
                f"{word}: {row.title}, {row.dtype}, {row.size}: {c.before:.2f} of the ceiling "
                f"then, {c.now:.2f} now ({c.ratio:.2f}×, noise {c.noise:.1%})"
            )
            say(out, text, "red" if word == "slower" else "green")
    same = len(found) - len(worse) - len(better)
    say(out, f"{len(worse)} slower, {len(better)} faster, {same} the same")
    return bool(faults or lost)


def losses(results: Results, out: Console, fail_below: float) -> bool:
    """Print where opforge is slower than the best other by more than allowed. Returns if any."""
    lost = False
    for rows in results.workloads().values():
        ours, best = rows.get(OURS), best_other(rows.values())
        if ours is None or best is None or not ours.us or not best.us:
            continue
        if best.us / ours.us < fail_below:
            lost = True
            text = (
                f"too slow: {ours.title}, {ours.dtype}, {ours.size}: "
                f"{best.us / ours.us:.2f}× the speed of {best.implementation}, not {fail_below:g}×"
            )
            say(out, text, "red")
    return lost
