# SPDX-License-Identifier: Apache-2.0
"""Breaks the long lines of rendered files: comments, and lists of C++ after their open bracket."""

from __future__ import annotations

import re

from opforge.new.lines import WIDTH


def wrapped(file: str, text: str) -> str:
    """The text of a file with no line too long. Lines of Python, but for comments, stay."""
    lines: list[str] = []
    rest = text.split("\n")
    column = -1  # where the line continues that is being broken
    while rest:
        line = rest.pop(0)
        comment = re.match(r"\s*(#|//) ", line)
        if len(line) <= WIDTH or (file.endswith(".py") and not comment):
            lines.append(line)
            column = -1
        elif comment:
            head, cut = comment[0], line.rfind(" ", 0, WIDTH + 1)
            lines.append(line[:cut])
            # What is cut off belongs to the same comment: it goes before what follows.
            follows = rest and rest[0].startswith(head) and " EDIT " not in rest[0]
            after = f" {rest.pop(0).removeprefix(head)}" if follows else ""
            rest.insert(0, head + line[cut + 1 :] + after)
        else:
            cut, column = _place(line, column)
            lines.append(line[:cut].rstrip())
            if cut < len(line):
                rest.insert(0, " " * column + line[cut:].lstrip())
    return "\n".join(lines)


def _place(line: str, column: int) -> tuple[int, int]:
    """Where to break a line of C++, and the column where it continues."""
    plain = re.sub(r'"[^"]*"', lambda m: "_" * len(m[0]), line)
    for mark in (", ", " && ", " * "):
        cut = plain.rfind(mark, 0, WIDTH)
        bracket = _open_bracket(plain[:cut])
        begin = bracket + 1 if bracket >= 0 else column
        if cut > 0 and begin >= 0 and cut > begin:
            return cut + len(mark), begin
    return len(line), -1


def _open_bracket(text: str) -> int:
    """The position of the last bracket that is open at the end of a text, or -1."""
    places: list[int] = []
    for i, letter in enumerate(text):
        if letter in "([{":
            places.append(i)
        elif letter in ")]}" and places:
            places.pop()
    return places[-1] if places else -1
