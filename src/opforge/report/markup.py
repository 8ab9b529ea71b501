# SPDX-License-Identifier: Apache-2.0
"""HTML and SVG as text. What is not :class:`Html` yet is escaped on its way in."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence

_UNCLOSED = {"td", "th", "tr", "li"}  # HTML ends them by itself, and a page has very many
_EMPTY = {"rect", "circle", "line", "path", "polyline"}  # of SVG; a child makes them ordinary


class Html(str):
    """Markup that is finished."""

    __slots__ = ()


def escape(value: object) -> Html:
    """Anything as text for a page; markup stays what it is."""
    return value if isinstance(value, Html) else Html(html.escape(str(value), quote=True))


def join(parts: Iterable[object], between: str = "") -> Html:
    """Parts one after the other."""
    return Html(escape(between).join(map(escape, parts)))


def tag(name: str, *children: object, **attributes: object) -> Html:
    """An element; ``aria_label`` stands for ``aria-label``, ``class_`` for ``class``.

    An attribute that is None or False is left out.
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
    """A table in a box that it can be scrolled in.

    Args:
        numbers_from: the first column (from 1) of numbers: it and those after it are set right.
        words_last: the last column is of words all the same.
        label: what it is, for those who do not see it.
        sortable: the script of the page may sort and filter it.
    """
    kinds = [f"r{numbers_from}" if numbers_from else "", "w" if words_last else ""]
    kinds.append("sortable" if sortable else "")
    head = tag("thead", tag("tr", *[tag("th", h, scope="col") for h in heads]))
    body = tag("tbody", *[tag("tr", *map(_cell, row)) for row in rows])
    inner = tag("table", head, body, class_=" ".join(filter(None, kinds)) or None)
    return tag("div", inner, class_="box", role="region", aria_label=label, tabindex=0)


def _cell(value: object) -> Html:
    """A cell made by :func:`tag` as it is; other things in one of their own."""
    return value if isinstance(value, Html) and value.startswith("<td") else tag("td", value)


def details(summary: object, *content: object, open_: bool = False, class_: str = "") -> Html:
    """Something long behind a line that says what it is."""
    return tag("details", tag("summary", summary), *content, open=open_, class_=class_ or None)


def coordinate(value: float) -> str:
    """A length for SVG: a tenth of a pixel is finer than any screen."""
    return f"{value:.1f}".removesuffix(".0")


def number(value: float | None, digits: int = 4) -> str:
    """``34.23``, ``1204``, ``0.0125``; nothing where it is unknown."""
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
    """``0.996×``: a small loss is not rounded away."""
    return f"{value:.3f}×" if value < 10 else f"{number(value, 3)}×"


def count(many: int, what: str) -> str:
    """``1 row``, ``2 rows``."""
    return f"{many} {what}" if many == 1 else f"{many} {what}s"


def percent(value: float | None) -> str:
    """``98.4%``."""
    if value is None or not math.isfinite(value):
        return number(value)
    return f"{100 * value:.1f}%"


def span_of(values: Sequence[float]) -> str:
    """``93.1% – 104.5%``, or the one value there is."""
    low, high = percent(min(values)), percent(max(values))
    return low if low == high else f"{low} – {high}"
