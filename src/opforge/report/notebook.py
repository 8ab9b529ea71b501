# SPDX-License-Identifier: Apache-2.0
"""The results of a check and of a benchmark as a notebook shows them."""

from __future__ import annotations

from opforge.bench.results import OURS, Results, Row, best_other, overlap
from opforge.check.results import Report
from opforge.report import scoreboard
from opforge.report.markup import Html, number, percent, ratio, table, tag

# The notebook has its own styles; these are for what has a meaning here.
_STYLE = """
.opforge td, .opforge th { text-align: left; vertical-align: top }
.opforge .r6 tr > :nth-child(n+6) { text-align: right }
.opforge .w tr > :last-child { text-align: left }
.opforge .good { color: #1b8a3d } .opforge .bad { color: #d0342c } .opforge .open { color: #a87900 }
.opforge .box { overflow-x: auto; max-height: 32rem }
"""


def of_check(report: Report) -> str:
    """A report of a check: counts, failures and every row."""
    return _whole(scoreboard.section([report]))


def of_bench(results: Results) -> str:
    """Benchmark results: a line per implementation, with opforge's speed beside the best other."""
    heads = ("op", "variant", "dtype", "shape", "", "µs", "GB/s", "of ceiling", "speed")
    lines = [
        _line(row, best_other(rows.values()))
        for rows in results.workloads().values()
        for row in rows.values()
    ]
    return _whole(table(heads, lines, numbers_from=6, words_last=True, label="Benchmark"))


def _line(row: Row, best: Row | None) -> list[object]:
    op = f"{row.op} {row.direction}"
    is_ours = row.implementation == OURS
    name = tag("b", row.implementation) if is_ours else row.implementation
    speed: object = ""
    if row.error:
        speed = tag("td", f"✗ {row.error}", class_="bad")
    elif is_ours and best is not None and best.us and row.us:
        same = overlap(row, best)
        times = "within the noise of" if same else f"{ratio(best.us / row.us)} the speed of"
        speed = f"{times} {best.implementation}"
    share = percent(row.share) if row.share is not None else ""
    time = "" if row.error else number(row.us)
    return [op, row.variant, row.dtype, row.size, name, time, number(row.gb_per_s), share, speed]


def _whole(content: Html) -> str:
    return tag("div", tag("style", Html(_STYLE)), content, class_="opforge")
