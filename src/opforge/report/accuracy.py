# SPDX-License-Identifier: Apache-2.0
"""The section about accuracy: errors in ulps of all implementations."""

from __future__ import annotations

import math

from opforge.bench.results import OURS, Results, Row
from opforge.check.place import title
from opforge.check.results import Report
from opforge.report import svg
from opforge.report.markup import Html, details, join, number, table, tag
from opforge.report.series import grouped

EAGER = "eager"
_SIDE = 300.0


def section(results: Results, reports: list[Report], styles: dict[str, int]) -> Html:
    """Make the section from benchmark rows, then from checks."""
    parts = [_measured(results, styles), _checked(reports)]
    if not any(parts):
        return Html("")
    text = (
        "The distance from the float64 result, in units of the last place (ulp) of the dtype: the "
        "largest over all elements, and the root mean square (rms). ▲ marks errors of opforge that "
        "are larger than eager PyTorch's."
    )
    return join([tag("p", text), *parts])


def _measured(results: Results, styles: dict[str, int]) -> Html:
    rows = [r for r in results.rows if r.ulp_max is not None or r.ulp_rms is not None]
    if not rows:
        return Html("")
    names = [n for n in styles if any(r.implementation == n for r in rows)]
    heads = [f"{n}, {what}" for n in names for what in ("max", "rms")]
    worst = [
        [title, dtype, *_figures(same, names)]
        for (title, dtype), same in grouped(rows, lambda r: (r.title, r.dtype)).items()
    ]
    every = [
        [same[0].title, same[0].dtype, same[0].size, *_figures(same, names)]
        for same in grouped(rows, lambda r: r.workload).values()
    ]
    top = ["op and pass", "dtype"]
    return join(
        [
            tag("h3", "In the benchmarks"),
            _scatter(results),
            tag("p", "The largest over all shapes:"),
            table([*top, *heads], worst, numbers_from=3, label="Largest errors", sortable=True),
            details(
                f"At every shape ({len(every)} workloads)",
                table(
                    [*top, "shape", *heads], every, numbers_from=4, label="Errors", sortable=True
                ),
            ),
        ]
    )


def _figures(rows: list[Row], names: list[str]) -> list[Html]:
    """Two cells for each implementation, with the largest errors of its rows."""
    cells = []
    for name in names:
        for what in ("ulp_max", "ulp_rms"):
            ours, eager = _largest(rows, name, what), _largest(rows, EAGER, what)
            more = name == OURS and ours is not None and eager is not None and ours > eager
            cells.append(_cell(ours, more))
    return cells


def _cell(value: float | None, more: bool) -> Html:
    words = number(value, 3)
    return tag("td", f"▲ {words}", class_="more") if more else tag("td", words)


def _largest(rows: list[Row], name: str, what: str) -> float | None:
    values = [getattr(r, what) for r in rows if r.implementation == name]
    return max((v for v in values if v is not None), default=None)


def _scatter(results: Results) -> Html:
    """The error of opforge against eager's, workload by workload, with the line of equal errors."""
    pairs = []
    for found in results.workloads().values():
        if OURS in found and EAGER in found:
            a, b = found[OURS].ulp_rms, found[EAGER].ulp_rms
            if a is not None and b is not None and math.isfinite(a) and math.isfinite(b):
                pairs.append((found[OURS], a, b))
    positive = [v for _, a, b in pairs for v in (a, b) if v > 0]
    if not positive:
        return Html("")
    # An error of 0 has no place on a logarithmic axis: it is drawn at the edge.
    both = svg.log_scale(positive, 0.0, 1.0, least=10)
    x = svg.Scale(both.low, both.high, 52.0, 52.0 + _SIDE, log=True)
    y = svg.Scale(both.low, both.high, 30.0 + _SIDE, 30.0, log=True)
    dtypes = {d: i for i, d in enumerate(dict.fromkeys(r.dtype for r, _, _ in pairs))}
    parts = [
        svg.axes(x, y, "eager, rms ulp", "opforge, rms ulp"),
        svg.path([(x.start, y.start), (x.end, y.end)], "roof dashed"),
        svg.text(x.end - 8, y.start - 10, "opforge is more accurate", "e roofname"),
        svg.text(x.start + 8, y.end + 18, "eager is more accurate", "roofname"),
    ]
    for dtype, style in dtypes.items():
        points = [
            (
                x(max(eager, both.low)),
                y(max(ours, both.low)),
                f"{row.title}, {row.size}: opforge {number(ours)}, eager {number(eager)}",
            )
            for row, ours, eager in pairs
            if row.dtype == dtype
        ]
        parts.append(svg.markers(style, points))
    about = f"{len(pairs)} workloads; the same figures are in the table below"
    plot = svg.figure(
        svg.NARROW - 40, _SIDE + 74, "Error of opforge against eager's", about, *parts
    )
    caption = "Each point is a workload. An error of 0 is drawn at the edge."
    return tag("figure", svg.legend(dtypes), plot, tag("figcaption", caption), class_="one")


def _checked(reports: list[Report]) -> Html:
    """The errors that rows of the check have measured."""
    lines, plain = [], []
    for op, result in ((o.op, r) for report in reports for o in report.ops for r in o.results):
        for what, e in result.errors.items():
            place = title(result.place)
            cells: list[object] = [op, what, place, result.row]
            for ours, theirs in (("max", "torch_max"), ("rms", "torch_rms")):
                a, b = e.get(ours), e.get(theirs)
                cells += [_cell(a, a is not None and b is not None and a > b), number(b, 3)]
            lines.append(cells)
            if (what, result.row) in (("forward", "own-cases"), ("backward", "gradients")):
                plain.append(cells)
    if not lines:
        return Html("")
    heads = ["op", "pass", "place", "row", "max", "PyTorch, max", "rms", "PyTorch, rms"]
    return join(
        [
            tag("h3", "In the checks"),
            tag(
                "p",
                "In plain calls. A row fails if an error is larger than the check allows.",
            ),
            table(heads, plain, numbers_from=5, label="Errors in plain calls", sortable=True),
            details(
                f"In every row ({len(lines)})",
                table(heads, lines, numbers_from=5, label="Errors in every row", sortable=True),
            ),
        ]
    )
