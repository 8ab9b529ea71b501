# SPDX-License-Identifier: Apache-2.0
"""Pictures for the README and the page of benchmarks: plots of `opforge report` as SVG files.

A file carries its own colours, for light and dark, and its own background, because the page that
shows it may be in the other mode.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from opforge.bench import shapes
from opforge.bench.results import Results, Row
from opforge.report import page as report_page
from opforge.report import roofline, scaling, series, speed, svg
from opforge.report.markup import Html, tag

from .data import Data, provenance

DTYPE, SHAPE = "bfloat16", (8192, 8192)
_PANEL = re.compile(
    r'<svg viewBox="0 0 (\d+) (\d+)" role="img"[^>]*><title>(.*?)</title>.*?</svg>', re.DOTALL
)
_GAP, _EDGE, _CAPTION, _LEGEND = 28.0, 16.0, 24.0, 30.0
_LETTER = 7.0  # the mean width of a letter


@dataclass(frozen=True)
class Picture:
    """A file of the gallery."""

    name: str
    title: str
    about: str  # for the page
    alt: str
    text: str  # SVG


@dataclass(frozen=True)
class Panel:
    """One plot of a report."""

    width: float
    height: float
    title: str
    markup: str

    def at(self, x: float, y: float) -> Html:
        """The plot at a place in a larger one."""
        place = f'<svg x="{x:.0f}" y="{y:.0f}" width="{self.width:.0f}" height="{self.height:.0f}" '
        return Html(self.markup.replace("<svg ", place, 1))


def pictures(data: Data) -> list[Picture]:
    """All pictures that have something to draw."""
    where = provenance(data.results).partition(",")[0]
    ours = data.of(data.ops)
    made = [
        _glance(ours, where),
        _roofline(data, where),
        _shares(ours, "forward", where),
        _shares(ours, "backward", where),
        _against(ours, where),
        _sweep(ours, where),
        _peers(data.of(data.yardsticks), where),
    ]
    return [picture for picture in made if picture is not None]


def _glance(results: Results, where: str) -> Picture | None:
    """One bar for each op and pass: its first variant, at one shape."""
    chosen = _only(results, lambda r: r.dtype == DTYPE and r.shape == SHAPE)
    size = " × ".join(map(str, SHAPE))
    panels = []
    for direction in ("forward", "backward"):
        found: dict[str, series.Contest] = {}
        for contest in series.contests(chosen):
            if contest.ours.direction == direction and contest.ratio is not None:
                found.setdefault(contest.ours.op, contest)
        bars = [_ratio_bar(name, contest) for name, contest in found.items()]
        if not bars:
            continue
        ratios = [c.ratio or 1.0 for c in found.values()]
        least, most = 0.95 * min(0.84, *ratios), 1.08 * max(1.25, *ratios)
        scale = svg.Scale(least, most, 150.0, svg.NARROW - 146, log=True)
        name = f"{direction}, {size}"
        about, right = "one bar per op", svg.NARROW - 140
        plot = svg.bars([("", bars)], scale, 1.0, name, about, (1.0,), words_at=right, left=22)
        panels += plots_of(plot)
    return picture_of(
        "glance",
        "At a glance",
        f"The time of the fastest alternative divided by opforge's, at {size} in {DTYPE}: bars to "
        "the right of 1 are wins, to the left losses. Every op that was measured at this shape, in "
        "its first variant. ≈: the 95% intervals of the two times overlap.",
        f"Bars: speed of each op relative to the fastest alternative, {size}, {DTYPE}, {where}",
        panels,
        {},
    )


def _ratio_bar(name: str, contest: series.Contest) -> svg.Bar:
    assert contest.ratio is not None
    assert contest.other is not None
    signs = {series.FASTER: ("▲", "faster"), series.SLOWER: ("▼", "slower")}
    sign, kind = signs.get(contest.outcome or "", ("≈", "undecided"))
    words = f"{sign} {contest.ratio:.2f}× {contest.other.implementation}"
    return svg.Bar(name, contest.ratio, words, kind, bad=kind == "slower")


def _roofline(data: Data, where: str) -> Picture | None:
    # Matrix work is a thousand times as intense; next to it, all other ops are one point.
    chosen = _only(
        data.results, lambda r: r.dtype == DTYPE and data.is_large(r) and r.ceiling != "product"
    )
    styles = series.styles(chosen)
    return picture_of(
        "roofline",
        "Roofline",
        "Forward passes in bfloat16 with a tensor of at least 128 MB, without matrix work. The "
        "lines are measured.",
        f"Roofline of forward passes in {DTYPE} on {where}: operations per byte against rate",
        plots_of(roofline.section(chosen, styles)),
        styles,
        columns=1,
        captions=False,
    )


def _shares(results: Results, direction: str, where: str) -> Picture | None:
    chosen = _headline(_only(results, lambda r: r.dtype == DTYPE and r.direction == direction))
    styles = series.styles(chosen)
    return picture_of(
        f"share-{direction}",
        f"Share of the ceiling, {direction}",
        "The default shapes of `opforge bench`, in bfloat16. 100% is the ceiling.",
        f"Bars: share of the ceiling of each implementation, {direction}, {DTYPE}, on {where}",
        plots_of(speed.shares(chosen, styles)),
        {},  # bars carry the names
    )


def _peers(results: Results, where: str) -> Picture | None:
    chosen = _headline(_only(results, lambda r: r.dtype == DTYPE))
    styles = series.styles(chosen)
    return picture_of(
        "yardsticks",
        "Share of the ceiling, yardsticks",
        "Ops that opforge has no kernel for yet, in bfloat16: the share that others reach.",
        f"Bars: share of the ceiling that others reach in ops such as rms_norm, {DTYPE}, {where}",
        plots_of(speed.shares(chosen, styles)),
        {},
    )


def _against(results: Results, where: str) -> Picture | None:
    order = {shape: i for i, shape in enumerate(shapes.NAMED["all"])}
    chosen = _only(results, lambda r: r.dtype == DTYPE and r.shape in order)
    chosen.rows.sort(key=lambda r: (r.op, r.direction != "forward", order[r.shape]))
    return picture_of(
        "against",
        "Against the fastest alternative",
        "The time of the fastest alternative divided by opforge's, in bfloat16: bars to the right "
        "of 1 are wins, to the left losses. ≈: the 95% intervals of the two times overlap.",
        f"Bars: time of the fastest alternative over opforge's, every shape, {DTYPE}, on {where}",
        plots_of(speed.against(chosen)),
        {},
    )


def _sweep(results: Results, where: str) -> Picture | None:
    sizes = set(shapes.sweep("cuda"))
    chosen = _only(
        results, lambda r: r.dtype == DTYPE and r.direction == "forward" and r.shape in sizes
    )
    styles = series.styles(chosen)
    found = plots_of(scaling.section(chosen, styles))
    return picture_of(
        "sweep",
        "Scaling",
        "Share of the ceiling of forward passes in bfloat16, with more rows (left) and with wider "
        "rows (right; where a curve jumps, the next width is odd).",
        f"Curves: share of the ceiling against the number and the width of rows, {DTYPE}, {where}",
        [p for p in found if "% of ceiling" in p.title],
        styles,
    )


def _only(results: Results, wanted: Callable[[Row], bool]) -> Results:
    """The wanted rows, without gradients that are views, which have nothing to time."""
    rows = [r for r in results.rows if wanted(r) and (r.us is not None or r.error)]
    return Results(rows, {r.run: results.runs[r.run] for r in rows})


def _headline(results: Results) -> Results:
    """Three shapes of each op: the usual ones, or the first three that it was measured at."""

    def three(rows: list[Row]) -> Iterable[Row]:
        there = list(dict.fromkeys(r.shape for r in rows))
        usual = shapes.DEFAULT["cuda"]
        chosen = usual if set(usual) <= set(there) else there[:3]
        return (r for shape in chosen for r in rows if r.shape == shape)

    groups = series.grouped(results.rows, lambda r: r.title).values()
    return Results([r for rows in groups for r in three(rows)], results.runs)


def plots_of(section: Html) -> list[Panel]:
    """The plots in a section of the report."""
    return [Panel(float(m[1]), float(m[2]), m[3], m[0]) for m in _PANEL.finditer(section)]


def picture_of(
    name: str,
    title: str,
    about: str,
    alt: str,
    panels: Sequence[Panel],
    styles: dict[str, int],
    columns: int = 2,
    captions: bool = True,
) -> Picture | None:
    """Plots beside and below each other, with one legend."""
    if not panels:
        return None
    columns = min(columns, len(panels))
    across = max(p.width for p in panels)
    width = 2 * _EDGE + columns * across + (columns - 1) * _GAP
    y, parts = _EDGE, []
    if styles:
        parts.append(_legend(styles, y))
        y += _LEGEND
    room = _CAPTION if captions else 0.0
    for i in range(0, len(panels), columns):
        row = panels[i : i + columns]
        for column, panel in enumerate(row):
            x = _EDGE + column * (across + _GAP)
            if captions:
                parts.append(svg.text(x, y + 12, _caption(panel), "label caption"))
            parts.append(panel.at(x, y + room))
        y += room + max(p.height for p in row) + _GAP
    height = y - _GAP + _EDGE
    whole = tag(
        "svg",
        tag("title", title),
        tag("desc", alt),
        tag("style", Html(_style())),
        tag("rect", width=width, height=height, class_="paper"),
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width:.0f} {height:.0f}",
        width=width,
        height=height,
        role="img",
    )
    return Picture(name, title, about, alt, whole + "\n")


def _caption(panel: Panel) -> Html:
    """The title of a plot, without the words that all plots share."""
    words = panel.title
    for common in ("Share of the ceiling: ", "Speed relative to the fastest other: "):
        words = words.removeprefix(common)
    return Html(words.replace(f", {DTYPE}", "").removesuffix(": % of ceiling against n"))


def _legend(styles: dict[str, int], y: float) -> Html:
    parts, x = [], _EDGE + 8
    for name, style in styles.items():
        parts.append(svg.markers(style, [(x, y + 8, "")], 5.0))
        parts.append(svg.text(x + 12, y + 12, name))
        x += 12 + _LETTER * len(name) + 24
    return tag("g", *parts)


def _style() -> str:
    return (
        report_page.own("plot.css")
        + "svg text { font-family: system-ui, sans-serif } svg .caption { font-size: 13px }\n"
        + ".paper { fill: var(--paper) }\n"
    )
