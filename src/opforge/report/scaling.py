# SPDX-License-Identifier: Apache-2.0
"""The section about scaling: time and share of the ceiling as one size grows."""

from __future__ import annotations

from dataclasses import dataclass

from opforge.bench.results import Key, Results, Row
from opforge.report import svg
from opforge.report.markup import Html, details, join, number, tag
from opforge.report.series import believed, grouped, share

_LEAST = 4  # fewest sizes for a curve
_TOP, _BOTTOM = 30.0, 230.0


@dataclass(frozen=True)
class Sweep:
    """Rows whose shapes differ in one dim only."""

    title: str
    dtype: str
    dim: int
    shape: str  # as text, with n in that dim
    rows: list[Row]

    def size(self, row: Row) -> int:
        """The value of n for a row."""
        return row.shape[self.dim]


def sweeps(results: Results) -> list[Sweep]:
    """All dims with at least four sizes while the other dims are equal."""
    found = []
    rows = [r for r in results.rows if believed(r)]
    for (title, dtype), same in grouped(rows, lambda r: (r.title, r.dtype)).items():
        for dim in range(max(len(r.shape) for r in same)):
            members_of: dict[tuple[int | None, ...], list[Row]] = {}
            for row in (r for r in same if len(r.shape) > dim):
                members_of.setdefault(_others(row.shape, dim), []).append(row)
            for others, members in members_of.items():
                if len({r.shape for r in members}) >= _LEAST:
                    shape = " × ".join("n" if n is None else str(n) for n in others)
                    found.append(Sweep(title, dtype, dim, shape, members))
    return found


def _others(shape: tuple[int, ...], dim: int) -> tuple[int | None, ...]:
    return tuple(None if i == dim else n for i, n in enumerate(shape))


def section(results: Results, styles: dict[str, int]) -> Html:
    """Make the section, with two plots for each sweep."""
    found = sweeps(results)
    if not found:
        return Html("")
    names = {r.implementation for s in found for r in s.rows}
    parts = [
        tag(
            "p",
            "Ops with at least four sizes that differ in one dim. The dashed line is the ceiling.",
        ),
        svg.legend({n: s for n, s in styles.items() if n in names}),
    ]
    for title, members in grouped(found, lambda s: s.title).items():
        plots = [p for sweep in members for p in _plots(sweep, styles)]
        shown = len(found) <= 6 or len(parts) == 2  # the first is always open, as an example
        parts.append(details(tag("b", title), tag("div", *plots, class_="plots"), open_=shown))
    return join(parts)


def _plots(sweep: Sweep, styles: dict[str, int]) -> list[Html]:
    plots = [_time_plot(sweep, styles)]
    if any(share(r) is not None for r in sweep.rows):
        plots.append(_share_plot(sweep, styles))
    caption = f"{sweep.dtype}, {sweep.shape}"
    return [tag("figure", tag("figcaption", caption), plot) for plot in plots]


def _time_plot(sweep: Sweep, styles: dict[str, int]) -> Html:
    ceilings = {sweep.size(r): r.ceiling_us for r in sweep.rows if r.ceiling_us}
    times = {r.key: r.us for r in sweep.rows if r.us}
    y = svg.log_scale([*times.values(), *ceilings.values()], _BOTTOM, _TOP)
    return _curves(sweep, styles, y, "µs", times, ceilings)


def _share_plot(sweep: Sweep, styles: dict[str, int]) -> Html:
    shares = {r.key: 100 * s for r in sweep.rows if (s := share(r)) is not None}
    y = svg.Scale(0.0, max(100.0, *shares.values()) * 1.05, _BOTTOM, _TOP)
    ceilings = {sweep.size(r): 100.0 for r in sweep.rows if r.key in shares}
    return _curves(sweep, styles, y, "% of ceiling", shares, ceilings)


def _curves(
    sweep: Sweep,
    styles: dict[str, int],
    y: svg.Scale,
    unit: str,
    values: dict[Key, float],
    ceilings: dict[int, float],
) -> Html:
    """Draw a line with markers for each implementation, and the ceiling."""
    x = svg.log_scale([sweep.size(r) for r in sweep.rows], 52.0, svg.NARROW - 10)
    parts = [svg.axes(x, y, "n", unit)]
    parts.append(svg.path([(x(n), y(v)) for n, v in sorted(ceilings.items())], "roof dashed"))
    rows = sorted((r for r in sweep.rows if r.key in values), key=sweep.size)
    by_name = grouped(rows, lambda r: r.implementation)
    for name in sorted(by_name, key=lambda n: -styles[n]):  # opforge last, on top
        places = [(x(sweep.size(r)), y(values[r.key])) for r in by_name[name]]
        parts.append(svg.path(places, f"curve {svg.colour(styles[name])}"))
        words = [f"n = {sweep.size(r)}: {number(values[r.key])} {unit}" for r in by_name[name]]
        points = [(*place, w) for place, w in zip(places, words, strict=True)]
        parts.append(svg.markers(styles[name], points))
    title = f"{sweep.title}, {sweep.dtype}, {sweep.shape}: {unit} against n"
    about = f"n from {sweep.size(rows[0])} to {sweep.size(rows[-1])}, of {', '.join(by_name)}"
    return svg.figure(svg.NARROW, _BOTTOM + 46, title, about, *parts)
