# SPDX-License-Identifier: Apache-2.0
"""Formats numbers for people, and names; suggests names for misspelled ones."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def size(count: float) -> str:
    """A number of bytes as text: ``134 MB``."""
    return f"{_scaled(count, 1000, ('', 'K', 'M', 'G', 'T'))}B"


def seconds(value: float) -> str:
    """A duration as text: ``65.2 µs``."""
    return f"{_scaled(value * 1e9, 1000, ('n', 'µ', 'm', ''))}s"


def percent(share: float) -> str:
    """A fraction as a percentage: ``87%``."""
    return f"{share:.0%}" if share >= 0.1 or share == 0 else f"{share:.1%}"


def ago(value: float) -> str:
    """How long ago something was, in words: ``5 minutes ago``."""
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if (count := int(value // length)) > 0:
            return f"{count} {unit}{'' if count == 1 else 's'} ago"
    return "just now"


def camel(name: str) -> str:
    """The name of a class: ``RmsNorm`` of ``rms_norm``."""
    return "".join(part.capitalize() for part in name.split("_"))


def _scaled(value: float, step: float, units: tuple[str, ...]) -> str:
    for unit in units[:-1]:
        if value < 999.5:
            return f"{value:.3g} {unit}"
        value /= step
    return f"{value:.3g} {units[-1]}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``; did you mean 'softmax'?`` if ``name`` is close to a known one, else an empty string."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
