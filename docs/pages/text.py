# SPDX-License-Identifier: Apache-2.0
"""Helpers that write Markdown."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

GENERATED = "<!-- Made by docs/generate.py. Do not edit. -->\n\n"


def prose(*sentences: str) -> str:
    """A paragraph."""
    text = " ".join(s for s in sentences if s)
    return textwrap.fill(text, 104, break_long_words=False, break_on_hyphens=False) + "\n\n"


def table(
    heads: Sequence[str], lines: Iterable[Sequence[object]], first: int = 1, last: int | None = None
) -> str:
    """A table; the columns from ``first`` to ``last`` are numbers and aligned to the right."""
    right = range(len(heads))[first:last]
    marks = ["--:" if i in right else "---" for i in range(len(heads))]
    text = [f"| {' | '.join(map(str, row))} |" for row in (heads, *lines)]
    return "\n".join([text[0], f"|{'|'.join(marks)}|", *text[1:]]) + "\n"


def words_only(heads: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    """A table without numbers."""
    return table(heads, lines, first=len(heads))


def listed(items: Iterable[str]) -> str:
    """A list, with one item per line."""
    return "".join(f"- {item}\n" for item in items)


def enumerated(items: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return " and ".join(filter(None, [", ".join(items[:-1]), items[-1]])) if items else ""


def code(text: str, language: str = "") -> str:
    """A block of code."""
    return f"```{language}\n{text.strip()}\n```\n"


def size(count: float) -> str:
    """Bytes in a readable unit."""
    for factor, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count:.0f} B"


def span(values: Sequence[float]) -> str:
    """``93 – 105%``, or a single value."""
    low, high = f"{100 * min(values):.0f}", f"{100 * max(values):.0f}"
    return f"{low}%" if low == high else f"{low} – {high}%"
