# SPDX-License-Identifier: Apache-2.0
"""Pieces of Python code, with lines broken where they are too long."""

from __future__ import annotations

from collections.abc import Sequence

WIDTH = 100  # columns of a line


def function(name: str, params: Sequence[str], returns: str) -> str:
    """The head of a function in Python."""
    tail = f") -> {returns}:"
    whole = f"def {name}({', '.join(params)}{tail}"
    if len(whole) <= WIDTH:
        return whole
    inside = f"    {', '.join(params)}"
    if len(inside) > WIDTH:
        inside = "\n".join(f"    {p}," for p in params)
    return f"def {name}(\n{inside}\n{tail}"


def string(text: str, indent: int, before: int = 0) -> str:
    """A string of Python, with its end on more lines where one is too short."""
    lines, room = [""], WIDTH - indent - before - len('"",')
    for word in text.split(" "):
        if lines[-1] and len(lines[-1]) + len(word) + 1 > room:
            lines.append("")
            room = WIDTH - indent - len('"",')
        lines[-1] += f"{word} "
    return ("\n" + " " * indent).join(f'"{line}"' for line in [*lines[:-1], lines[-1][:-1]])


def raises(indent: int, error: str, *parts: str) -> list[str]:
    """A raise statement, whose message may have several parts. Lines are broken as needed."""
    head = " " * indent + f"raise {error}("
    if len(parts) == 1 and len(head) + len(parts[0]) + 1 <= WIDTH:
        return [f"{head}{parts[0]})"]
    return [head, *(" " * (indent + 4) + part for part in parts), " " * indent + ")"]
