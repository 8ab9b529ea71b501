# SPDX-License-Identifier: Apache-2.0
"""Finds 64-bit integers that a source puts into 32 bits, in what the compiler says of it.

A size or an offset kept so wraps around beyond 2**31 elements, which few tests have memory for. An
explicit cast is the author's word that it fits, and no compiler warns of it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

# The compiler's warning. Torch's own headers cause many, so they are included by -isystem.
FLAGS = {"gcc": "-Wconversion", "clang": "-Wshorten-64-to-32"}
_WARNING = re.compile(r"^([^\s:][^:\n]*):(\d+):\d+: warning: (.*conversion.*) to ('.*)$", re.M)
_WIDE = re.compile(r"'(?:(?:un)?signed )?long\b[^']*'")
_NARROW = re.compile(r"'(?:(?:un)?signed )?(?:int|short|char)(?: (?:unsigned )?int)?'|'unsigned'")


def found(output: str, roots: Sequence[Path]) -> list[str]:
    """``file:line`` of each, with both types, in the order of files; ``roots`` shorten names."""
    places = set()
    for file, line, source, target in _WARNING.findall(output):
        if _WIDE.search(source) and _NARROW.search(target):
            path = Path(file)
            root = next((r for r in roots if path.is_relative_to(r)), None)
            name = path.relative_to(root) if root else path
            becomes = f"{_first_type(source)} becomes {_first_type(target)}"
            places.add((str(name), int(line), becomes))
    return [f"{name}:{line}: {becomes}" for name, line, becomes in sorted(places)]


def _first_type(text: str) -> str:
    """The type as the source spells it; what it is an alias of comes after."""
    return text.split("'")[1]
