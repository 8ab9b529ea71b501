# SPDX-License-Identifier: Apache-2.0
"""The roofline plot: the rate of each forward, below the measured ceilings."""

from __future__ import annotations

from dataclasses import dataclass

from opforge.bench.results import Results, Row
from opforge.report import svg
from opforge.report.markup import Html, join, number, tag
from opforge.report.series import believed, grouped

_WIDTH, _LEFT, _RIGHT, _PLOT = 680.0, 62.0, 668.0, 330.0
_LETTER, _LANE = 9.6, 20.0  # size of the names above the plot, as on a phone


@dataclass(frozen=True)
class Roof:
    """A ceiling as a line: bytes per second times intensity, or operations per second."""

    name: str
    rate: float  # GB/s of a slope, TFLOP/s of a flat roof
    row: Row  # where it was measured


def slopes(rows: list[Row]) -> list[Roof]:
    """The best measured bandwidth of copying, and of reading if that was measured."""
    found = []
    for name in ("copy", "read"):
        rates = [(r.bytes / us / 1e3, r) for r in rows if (us := r.ceilings.get(name))]
        if rates:
            rate, row = max(rates, key=lambda pair: pair[0])
            found.append(Roof(name, rate, row))
    return found


def flats(rows: list[Row]) -> list[Roof]:
    """For each dtype, the best rate of the library's matrix product as a ceiling."""
    best: dict[str, Roof] = {}
    for row in rows:
        us = row.ceiling_us
        if row.ceiling != "product" or not us or not row.operations:
            continue
        rate = row.operations / us / 1e6
        if row.dtype not in best or rate > best[row.dtype].rate:
            best[row.dtype] = Roof(f"product, {row.dtype}", rate, row)
    return list(best.values())


def section(results: Results, styles: dict[str, int]) -> Html:
    """Make the plot and the list of its roofs. Empty if no operations are counted."""
    forward = [r for r in results.rows if r.direction == "forward" and r.bytes > 0]
    points = [r for r in forward if believed(r) and r.operations > 0]
    if not points:
        return Html("")
    points.sort(key=_intensity)
    rising, level = slopes(forward), flats(forward)
    sources = [_source(roof, "GB/s") for roof in rising] + [_source(r, "TFLOP/s") for r in level]
    text = (
        "Operations per byte that must be moved, against operations per second, for every forward "
        "pass whose operations are counted. "
        + ("Lines are measured ceilings. " if sources else "No ceiling was measured. ")
        + "Other passes and exact figures are in the tables."
    )
    names = {n: s for n, s in styles.items() if any(r.implementation == n for r in points)}
    return join(
        [
            tag("p", text),
            svg.legend(names),
            _plot(points, rising, level, styles),
            tag("ul", *sources) if sources else "",
        ]
    )


def _source(roof: Roof, unit: str) -> Html:
    row = roof.row
    where = f"{row.bytes / 1e6:.4g} MB, for {row.title}, {row.dtype}, {row.size}"
    return tag(
        "li", tag("b", roof.name), f": {number(roof.rate)} {unit}, the best measured ({where})"
    )


def _plot(points: list[Row], rising: list[Roof], level: list[Roof], styles: dict[str, int]) -> Html:
    most = max(max(_rate(r) for r in points), max((f.rate for f in level), default=0.0))
    unit, factor = ("TFLOP/s", 1.0) if most >= 1 else ("GFLOP/s", 1e3)
    x = svg.log_scale([_intensity(r) for r in points], _LEFT, _RIGHT, least=10)
    names, lanes = _names(points, x)
    top = 30.0 + _LANE * lanes
    heights = [_rate(r) * factor for r in points] + [f.rate * factor for f in level]
    heights += [s.rate * x.low * factor / 1e3 for s in rising]
    if not level:
        heights += [s.rate * x.high * factor / 1e3 for s in rising]
    y = svg.log_scale(heights, top + _PLOT, top, least=10)
    parts = [svg.axes(x, y, "operations per byte", unit)]
    tops: dict[tuple[str, int], float] = {}
    for row in points:  # find the highest point of each name, where its line ends
        at = _column(row, x)
        tops[row.op, at] = min(tops.get((row.op, at), y.start), y(_rate(row) * factor))
    for (op, at), (place, anchor, lane) in names.items():
        height = 16.0 + _LANE * lane
        parts.append(svg.line(place, height + 4, place, tops[op, at], "leader"))
        shift = {"": 4.0, "e": -4.0}[anchor]
        parts.append(svg.text(place + shift, height + 4, op, f"{anchor} name".strip()))
    parts += _roofs(x, y, rising, level, factor)
    by_name = grouped(points, lambda r: r.implementation)
    for name in sorted(by_name, key=lambda n: -styles[n]):  # opforge last, on top
        places = []
        for row in by_name[name]:
            rate = _rate(row) * factor
            words = f"{row.title}, {row.dtype}, {row.size}: {name} {number(rate)} {unit}"
            places.append((x(_intensity(row)), y(rate), words))
        parts.append(svg.markers(styles[name], places))
    about = f"{len(points)} measurements; the same figures are in the tables below"
    return svg.figure(_WIDTH, top + _PLOT + 44, "Roofline", about, *parts, big=True)


def _roofs(
    x: svg.Scale, y: svg.Scale, rising: list[Roof], level: list[Roof], factor: float
) -> list[Html]:
    parts = []
    highest = max((f.rate * factor for f in level), default=y.high)
    for place, slope in enumerate(rising):
        per_byte = slope.rate * factor / 1e3
        first, last = max(x.low, y.low / per_byte), min(x.high, highest / per_byte)
        if first >= last:
            continue
        kind = "roof" if slope.name == "copy" else "roof dashed"
        ends = [(x(first), y(per_byte * first)), (x(last), y(per_byte * last))]
        parts.append(svg.path(ends, kind))
        # the name is in the corner above all roofs, where there are no points
        height = y.end + 16 + 20 * place
        parts.append(svg.line(x.start + 10, height, x.start + 38, height, kind))
        words = f"{slope.name} {number(slope.rate, 3)} GB/s"
        parts.append(svg.text(x.start + 44, height + 4, words, "roofname"))
    for flat in level:
        height = flat.rate * factor
        starts = [height / (s.rate * factor / 1e3) for s in rising[:1]]
        first = min(max([x.low, *starts]), x.high)
        parts.append(svg.path([(x(first), y(height)), (x.end, y(height))], "roof"))
        words = f"{flat.name} {number(flat.rate, 3)} TFLOP/s"
        parts.append(svg.text(x.end, y(height) - 6, words, "e roofname"))
    return parts


def _names(
    points: list[Row], x: svg.Scale
) -> tuple[dict[tuple[str, int], tuple[float, str, int]], int]:
    """The positions of the names of ops above the plot, in lanes so that they do not overlap."""
    wanted = {(r.op, _column(r, x)): x(_intensity(r)) for r in points}
    if len(wanted) > 24:  # too many to read: show each op once, at its highest intensity
        last = {op: column for op, column in sorted(wanted)}
        wanted = {pair: wanted[pair] for pair in last.items()}
    found: dict[tuple[str, int], tuple[float, str, int]] = {}
    taken: list[list[tuple[float, float]]] = []
    for op, column in sorted(wanted, key=lambda pair: (pair[1], pair[0])):
        place = wanted[op, column]
        width = len(op) * _LETTER + 8
        anchor = "" if place + width < _WIDTH else "e"
        extent = (place, place + width) if not anchor else (place - width, place)
        lane = 0
        while lane < len(taken) and any(a < extent[1] and extent[0] < b for a, b in taken[lane]):
            lane += 1
        if lane == len(taken):
            taken.append([])
        taken[lane].append(extent)
        found[op, column] = (place, anchor, lane)
    return found, len(taken)


def _column(row: Row, x: svg.Scale) -> int:
    """The column of a point. Points within four pixels share a name."""
    return round(x(_intensity(row)) / 4)


def _intensity(row: Row) -> float:
    return row.operations / row.bytes


def _rate(row: Row) -> float:
    return row.tflop_per_s or 0.0
