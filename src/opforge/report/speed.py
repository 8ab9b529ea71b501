# SPDX-License-Identifier: Apache-2.0
"""The sections about speed: at a glance, shares of the ceiling, and against the fastest other."""

from __future__ import annotations

import math

from opforge.bench.results import OURS, Results, Row
from opforge.report import svg
from opforge.report.markup import Html, details, join, number, percent, ratio, span_of, table, tag
from opforge.report.series import (
    FASTER,
    SLOWER,
    UNDECIDED,
    Contest,
    believed,
    contests,
    grouped,
    share,
)

_SIGN = {FASTER: "▲", UNDECIDED: "≈", SLOWER: "▼"}
_FEW = 200  # with more bars, the sections are collapsed


def glance(results: Results) -> Html:
    """Make the table with one line for each op, pass and variant."""
    lines: list[list[object]] = []
    for title, found in grouped(contests(results), lambda c: c.ours.title).items():
        shares = [s for c in found if (s := share(c.ours)) is not None]
        ratios = [c.ratio for c in found if c.ratio is not None]
        count = {o: sum(c.outcome == o for c in found) for o in _SIGN}
        failed = sum(not believed(c.ours) for c in found)
        lines.append(
            [
                title,
                span_of(shares) if shares else "",
                ratio(min(ratios)) if ratios else "",
                ratio(math.exp(sum(map(math.log, ratios)) / len(ratios))) if ratios else "",
                tag("td", f"▼ {count[SLOWER]}", class_="bad") if count[SLOWER] else 0,
                count[UNDECIDED],
                count[FASTER],
                tag("td", f"✗ {failed}", class_="bad") if failed else 0,
                len(found),
            ]
        )
    if not lines:
        return Html("")
    heads = ["op and pass", "share of ceiling", "worst ratio", "mean ratio"]
    heads += ["slower", "within noise", "faster", "no valid time", "workloads"]
    text = (
        "opforge over all dtypes and shapes. The ceiling was measured in the same run: copying or "
        "reading the same bytes, or the library's matrix product. The ratio is the time of the "
        "fastest other divided by opforge's; above 1, opforge is faster. The mean is geometric. "
        "Within noise: the 95% intervals of the two times overlap."
    )
    return join(
        [tag("p", text), table(heads, lines, numbers_from=2, label="At a glance", sortable=True)]
    )


def shares(results: Results, styles: dict[str, int]) -> Html:
    """Bars: each implementation's share of the ceiling."""
    rows = [r for r in results.rows if r.share is not None or r.error]
    titles = grouped(rows, lambda r: r.title)
    drawn = {t: found for t, found in titles.items() if any(share(r) for r in found)}
    # What only others compute comes last.
    titles = dict(sorted(drawn.items(), key=lambda i: all(r.implementation != OURS for r in i[1])))
    if not titles:
        return Html("")
    parts = [tag("p", "100% is the measured ceiling of that workload.")]
    for title, found in titles.items():
        ours = [s for r in found if r.implementation == OURS and (s := share(r)) is not None]
        plots = [
            tag("figure", tag("figcaption", dtype), _share_plot(title, dtype, members, styles))
            for dtype, members in grouped(found, lambda r: r.dtype).items()
        ]
        line = join([tag("b", title), f": opforge {span_of(ours)}" if ours else ""])
        shown = len(rows) <= _FEW or len(parts) == 1  # the first is always open, as an example
        parts.append(details(line, tag("div", *plots, class_="plots"), open_=shown))
    return join(parts)


def _share_plot(title: str, dtype: str, rows: list[Row], styles: dict[str, int]) -> Html:
    groups = []
    for size, members in grouped(rows, lambda r: r.size).items():
        members.sort(key=lambda r: styles[r.implementation])
        groups.append((size, [_share_bar(r, styles) for r in members]))
    highest = max([1.0] + [s for r in rows if (s := share(r)) is not None])
    scale = svg.Scale(0.0, highest, 96.0, svg.NARROW - 50)
    name = f"Share of the ceiling: {title}, {dtype}"
    about = f"{len(rows)} measurements; the same figures are in the tables below"
    return svg.bars(groups, scale, 0.0, name, about, marks=(0.0, 1.0))


def _share_bar(row: Row, styles: dict[str, int]) -> svg.Bar:
    value = share(row)
    if value is not None:
        words = percent(value)
        tip = f"{number(row.us)} µs, {row.ceiling} {number(row.ceiling_us)} µs"
    else:
        words, tip = _missing(row), row.error
    kind = svg.colour(styles[row.implementation])
    return svg.Bar(row.implementation, value, words, kind, tip, bad=value is None)


def _missing(row: Row) -> str:
    return "✗ not timed" if row.us is None else "✗ rejected"


def against(results: Results) -> Html:
    """Make the section: losses first, then every workload against the fastest other."""
    found = [c for c in contests(results) if c.other is not None or not believed(c.ours)]
    if not any(c.ratio is not None for c in found):
        return Html("")
    slower = [c for c in found if c.outcome == SLOWER]
    slower.sort(key=lambda c: c.ratio or 0.0)
    count = {o: sum(c.outcome == o for c in found) for o in _SIGN}
    missing = sum(not believed(c.ours) for c in found)
    words = [f"{word} in {count[word]}" for word in (FASTER, SLOWER, UNDECIDED)]
    words += [f"without a valid time in {missing}"] if missing else []
    total = tag("b", f"Of {len(found)} workloads, opforge is {', '.join(words)}.")
    meaning = " Bars to the left of 1 are losses to the named fastest other."
    parts = [tag("p", total, meaning)]
    if slower:
        heads = ["ratio", "op and pass", "dtype", "shape", "opforge µs", "other µs", "other"]
        lines = [_loss(c) for c in slower]
        losses = table(heads, lines, numbers_from=5, words_last=True, label="Losses", sortable=True)
        parts.append(details(tag("b", f"Losses ({len(slower)}), worst first"), losses, open_=True))
    plots = []
    for title, members in grouped(found, lambda c: c.ours.title).items():
        plots.append(tag("figure", tag("figcaption", title), _ratio_plot(title, members)))
    line = f"Every workload ({len(found)})"
    parts.append(details(line, tag("div", *plots, class_="plots"), open_=len(found) <= _FEW))
    return join(parts)


def _loss(contest: Contest) -> list[object]:
    ours, other = contest.ours, contest.other
    assert other is not None
    cell = tag("td", ratio(contest.ratio or 0.0), class_="bad")
    words = other.implementation + _elsewhere(contest)
    return [cell, ours.title, ours.dtype, ours.size, number(ours.us), number(other.us), words]


def _elsewhere(contest: Contest) -> str:
    """A note if the other time comes from another run, whose clocks may have differed."""
    other = contest.other
    return " (in another run)" if other is not None and other.run != contest.ours.run else ""


def _ratio_plot(title: str, found: list[Contest]) -> Html:
    groups = []
    for dtype, members in grouped(found, lambda c: c.ours.dtype).items():
        groups.append((dtype, [_ratio_bar(c) for c in members]))
    ratios = [c.ratio for c in found if c.ratio is not None]
    furthest = 1.08 * max([1.25] + [max(r, 1 / r) for r in ratios])
    scale = svg.Scale(1 / furthest, furthest, 104.0, svg.NARROW - 146, log=True)
    losses = sum(c.outcome == SLOWER for c in found)
    about = f"{len(found)} workloads, opforge is slower in {losses}; times are in the tables below"
    name = f"Speed relative to the fastest other: {title}"
    return svg.bars(groups, scale, 1.0, name, about, (1.0,), words_at=svg.NARROW - 140, left=15)


def _ratio_bar(contest: Contest) -> svg.Bar:
    ours, other, value = contest.ours, contest.other, contest.ratio
    if value is None or other is None:
        return svg.Bar(ours.size, None, f"{_missing(ours)} (opforge)", "", ours.error, bad=True)
    outcome = contest.outcome or UNDECIDED
    kind = {FASTER: "faster", SLOWER: "slower"}.get(outcome, "undecided")
    words = f"{_SIGN[outcome]} {ratio(value)} {other.implementation}"
    tip = f"opforge {number(ours.us)} µs, {other.implementation} {number(other.us)} µs: {outcome}"
    tip += _elsewhere(contest)
    return svg.Bar(ours.size, value, words, kind, tip, bad=outcome == SLOWER)
