# SPDX-License-Identifier: Apache-2.0
"""Builds HTML and SVG. Values that are not :class:`Html` are escaped."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence

_UNCLOSED = {"td", "th", "tr", "li"}  # HTML closes them implicitly, and a page has many
_EMPTY = {
    "rect",
    "circle",
    "line",
    "path",
    "polyline",
}  # SVG elements without an end tag, unless they have children


class Html(str):
    """Finished markup, which is not escaped again."""

    __slots__ = ()


def escape(value: object) -> Html:
    """Escape a value for a page. Markup is returned unchanged."""
    return value if isinstance(value, Html) else Html(html.escape(str(value), quote=True))


def join(parts: Iterable[object], between: str = "") -> Html:
    """Join parts, which are escaped if necessary."""
    return Html(escape(between).join(map(escape, parts)))


def tag(name: str, *children: object, **attributes: object) -> Html:
    """Make an element. ``aria_label`` means ``aria-label``, and ``class_`` means ``class``.

    Attributes that are None or False are left out.
    """
    words = [name]
    for key, value in attributes.items():
        key = key.rstrip("_").replace("_", "-")
        if value is True:
            words.append(key)
        elif value is not None and value is not False:
            text = coordinate(value) if isinstance(value, float) else escape(value)
            words.append(f'{key}="{text}"')
    start = " ".join(words)
    if name in _EMPTY and not children:
        return Html(f"<{start}/>")
    return Html(f"<{start}>{join(children)}" + ("" if name in _UNCLOSED else f"</{name}>"))


def table(
    heads: Sequence[object],
    rows: Iterable[Sequence[object]],
    numbers_from: int = 0,
    words_last: bool = False,
    label: str = "",
    sortable: bool = False,
) -> Html:
    """Make a table inside a scrollable box.

    Args:
        numbers_from: the first column of numbers, counted from 1. It and later ones are aligned
            right.
        words_last: the last column has words even so.
        label: a description for screen readers.
        sortable: the script of the page can sort and filter it.
    """
    kinds = [f"r{numbers_from}" if numbers_from else "", "w" if words_last else ""]
    kinds.append("sortable" if sortable else "")
    head = tag("thead", tag("tr", *[tag("th", h, scope="col") for h in heads]))
    body = tag("tbody", *[tag("tr", *map(_cell, row)) for row in rows])
    inner = tag("table", head, body, class_=" ".join(filter(None, kinds)) or None)
    return tag("div", inner, class_="box", role="region", aria_label=label, tabindex=0)


def _cell(value: object) -> Html:
    """A cell. If the value is a cell made by :func:`tag`, it is returned unchanged."""
    return value if isinstance(value, Html) and value.startswith("<td") else tag("td", value)


def details(summary: object, *content: object, open_: bool = False, class_: str = "") -> Html:
    """A collapsible section with a summary line."""
    return tag("details", tag("summary", summary), *content, open=open_, class_=class_ or None)


def coordinate(value: float) -> str:
    """A length for SVG, rounded to a tenth of a pixel."""
    return f"{value:.1f}".removesuffix(".0")


def number(value: float | None, digits: int = 4) -> str:
    """Format a number: ``34.23``, ``1204``, ``0.0125``, or "" for None."""
    if value is None:
        return ""
    if math.isnan(value) or math.isinf(value):
        return "not a number" if math.isnan(value) else "∞" if value > 0 else "-∞"
    if value == 0:
        return "0"
    size = math.floor(math.log10(abs(value)))
    if not -4 < size < 9:
        return f"{value:.{digits - 1}g}"
    return f"{value:.{max(digits - 1 - size, 0)}f}"


def ratio(value: float) -> str:
    """Format a ratio: ``0.996×``. Small losses stay visible."""
    return f"{value:.3f}×" if value < 10 else f"{number(value, 3)}×"


def count(many: int, what: str) -> str:
    """Format a count: ``1 row``, ``2 rows``."""
    return f"{many} {what}" if many == 1 else f"{many} {what}s"


def percent(value: float | None) -> str:
    """Format a share: ``98.4%``."""
    if value is None or not math.isfinite(value):
        return number(value)
    return f"{100 * value:.1f}%"


def span_of(values: Sequence[float]) -> str:
    """Format a range of shares: ``93.1% – 104.5%``, or one value."""
    low, high = percent(min(values)), percent(max(values))
    return low if low == high else f"{low} – {high}"
