# SPDX-License-Identifier: Apache-2.0
"""Draws plots in SVG: scales, axes, markers, lines and bars. Colours are classes in plot.css.

The ``viewBox`` has the width of a plot, and the page scales it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from opforge.report.markup import Html, coordinate, join, number, tag

NARROW = 420.0  # side by side on a desktop, below each other on a phone
_CHARACTER = 6.3  # mean width of a character in a narrow plot
_COLOURS = 6


@dataclass(frozen=True)
class Scale:
    """Maps data to pixels."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The pixel of a value."""
        if self.log:
            part = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            part = (value - self.low) / (self.high - self.low)
        return self.start + part * (self.end - self.start)

    def ticks(self, most: int = 7) -> list[float]:
        """Round values between the ends, for an axis."""
        narrow = self.high < 4 * self.low  # too few powers of ten and their fractions
        return self._log_ticks(most) if self.log and not narrow else self._linear_ticks(most)

    def _linear_ticks(self, most: int) -> list[float]:
        rough = (self.high - self.low) / most
        ten = 10.0 ** math.floor(math.log10(rough))
        step = next(s * ten for s in (1, 2, 5, 10) if s * ten >= rough * 0.999)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [i * step for i in range(first, last + 1)]

    def _log_ticks(self, most: int) -> list[float]:
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        for parts in ((1, 2, 5), (1,)):
            found = [p * 10.0**e for e in range(first, last + 1) for p in parts]
            found = [v for v in found if self.low * 0.999 <= v <= self.high * 1.001]
            if len(found) <= most:
                return found
        return found[:: -(-len(found) // most)]


def log_scale(values: Iterable[float], start: float, end: float, least: float = 3.0) -> Scale:
    """A scale for all values that spans at least a factor of ``least``."""
    found = list(values)
    low, high = min(found), max(found)
    margin = max(1.15, math.sqrt(least * low / high)) if high < least * low else 1.15
    return Scale(low / margin, high * margin, start, end, log=True)


def figure(
    width: float, height: float, title: str, text: str, *body: Html, big: bool = False
) -> Html:
    """A plot with a name and a description for screen readers."""
    return tag(
        "svg",
        tag("title", title),
        tag("desc", text),
        *body,
        viewBox=f"0 0 {width:.0f} {height:.0f}",
        role="img",
        class_="big" if big else None,
    )


def text(x: float, y: float, words: object, kind: str = "", title: str = "") -> Html:
    """Text at a position. ``kind`` has its classes: ``e`` ends there, ``m`` is centred."""
    tip = [tag("title", title)] if title else []
    return tag("text", *tip, words, x=x, y=y, class_=kind or None)


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Html:
    """A straight line."""
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=kind)


def path(points: Sequence[tuple[float, float]], kind: str) -> Html:
    """A line through points."""
    places = " ".join(f"{coordinate(x)},{coordinate(y)}" for x, y in points)
    return tag("polyline", points=places, class_=kind)


def axes(x: Scale, y: Scale, x_label: str, y_label: str) -> Html:
    """Grid, ticks and the names of both axes. The name of y is above the axis."""
    parts = []
    for v in x.ticks():
        parts.append(line(x(v), y.start, x(v), y.end, "grid"))
        parts.append(text(x(v), y.start + 17, short(v), "m"))
    for v in y.ticks():
        parts.append(line(x.start, y(v), x.end, y(v), "grid"))
        parts.append(text(x.start - 6, y(v) + 4, short(v), "e"))
    parts.append(line(x.start, y.start, x.end, y.start, "axis"))
    parts.append(line(x.start, y.start, x.start, y.end, "axis"))
    parts.append(text(x.end, y.start + 38, x_label, "e label"))
    parts.append(text(4, y.end - 10, y_label, "label"))
    return join(parts)


def short(value: float) -> str:
    """Format a number for an axis: ``0.2``, ``500``, ``20k``, ``1M``."""
    for factor, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= factor * 0.9999:
            value /= 1e3 if letter == "k" else factor
            break
    else:
        letter = ""
    text = number(value, 3)
    return (text.rstrip("0").rstrip(".") if "." in text else text) + letter


# Markers as paths relative to their centre, in sixths of a radius. The first is a circle.
_SHAPES: tuple[tuple[tuple[int, int], ...], ...] = (
    (),
    ((-5, -5), (5, -5), (5, 5), (-5, 5)),
    ((0, -7), (7, 5), (-7, 5)),
    ((0, -8), (7, 0), (0, 8), (-7, 0)),
    ((0, 7), (7, -5), (-7, -5)),
    ((-8, -4), (8, -4), (8, 4), (-8, 4)),
    ((-4, -8), (4, -8), (4, 8), (-4, 8)),
)


def colour(style: int) -> str:
    """The class of a colour. There are more shapes than colours, so pairs of the two differ."""
    return f"c{style % _COLOURS}"


def markers(style: int, points: Iterable[tuple[float, float, str]], radius: float = 4.0) -> Html:
    """Points with tooltips, in the style of one implementation. Style 0, opforge, is filled."""
    shape, unit, found = _SHAPES[style % len(_SHAPES)], radius / 6, []
    for x, y, words in points:
        tip = [tag("title", words)] if words else []
        if shape:
            corners = [f"{coordinate(x + unit * i)} {coordinate(y + unit * j)}" for i, j in shape]
            found.append(tag("path", *tip, d=f"M{'L'.join(corners)}z"))
        else:
            found.append(tag("circle", *tip, cx=x, cy=y, r=radius))
    return tag("g", *found, class_=f"p {colour(style)}" + ("" if style == 0 else " o"))


def legend(names: dict[str, int]) -> Html:
    """The legend of markers."""
    items = []
    for name, style in names.items():
        sign = tag(
            "svg", markers(style, [(8.0, 8.0, "")], 5.0), viewBox="0 0 16 16", aria_hidden="true"
        )
        items.append(tag("span", sign, name))
    return tag("p", *items, class_="legend")


@dataclass(frozen=True)
class Bar:
    """One bar. Without a value, only its words are shown."""

    label: str
    value: float | None
    words: str  # the value, or why there is none
    kind: str  # its CSS classes
    title: str = ""
    bad: bool = False


def bars(
    groups: Sequence[tuple[str, Sequence[Bar]]],
    scale: Scale,
    base: float,
    title: str,
    description: str,
    marks: Sequence[float],
    words_at: float | None = None,
    left: int = 14,
) -> Html:
    """Draw horizontal bars in groups with headings.

    Args:
        scale: maps values to pixels between the labels and the words.
        base: the value where bars start.
        marks: values with thicker grid lines.
        words_at: position of the words; by default after the bar.
        left: the most characters of a label.
    """
    parts, y = [], 8.0
    for heading, members in groups:
        if heading:
            parts.append(text(0.0, y + 11, heading, "label"))
            y += 17
        for bar in members:
            parts.append(_bar(bar, y, scale, base, words_at, left))
            y += 16
        y += 6
    ticks = [t for t in scale.ticks(4 if scale.log else 5) if t > 0 or not scale.log]
    behind = [line(scale(t), 4.0, scale(t), y, "grid") for t in ticks if t not in marks]
    behind += [line(scale(m), 4.0, scale(m), y, "axis") for m in marks]
    for t in ticks:
        label = f"{t * 100:.0f}%" if not scale.log else f"{short(t)}×"
        parts.append(text(scale(t), y + 13, label, "m"))
    return figure(NARROW, y + 18, title, description, *behind, *parts)


def _bar(bar: Bar, y: float, scale: Scale, base: float, words_at: float | None, left: int) -> Html:
    name = bar.label if len(bar.label) <= left else bar.label[: left - 1] + "…"
    room = scale.start - 6
    parts = [text(room, y + 11, name, "e", bar.label if name != bar.label else "")]
    end = scale(base)
    if bar.value is not None:
        first, second = sorted((scale(base), scale(bar.value)))
        inside = [tag("title", bar.title)] if bar.title else []
        parts.append(
            tag(
                "rect",
                *inside,
                x=first,
                y=y + 1,
                width=second - first,
                height=12.0,
                class_=f"b {bar.kind}",
            )
        )
        end = second
    at = end + 5 if words_at is None else words_at
    space = int((NARROW - at) / _CHARACTER)
    words = bar.words if len(bar.words) <= space else bar.words[: space - 1] + "…"
    tip = bar.title if bar.value is None else bar.words if words != bar.words else ""
    parts.append(text(at, y + 11, words, "bad" if bar.bad else "", tip))
    return join(parts)
