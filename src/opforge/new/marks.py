# SPDX-License-Identifier: Apache-2.0
"""Marks in the files of an op: comments such as ``EDIT 1: the formula`` name places to edit."""

from __future__ import annotations

import re
from dataclasses import dataclass

_MARK = re.compile(r"^\s*(?:#|//) EDIT (\d+): (.*(?:\n\s*(?:#|//) .*)*)", re.MULTILINE)


@dataclass(frozen=True)
class Mark:
    """A place to edit."""

    number: int
    file: str
    line: int
    text: str  # the first sentence of the comment, without its full stop


def marks_in(file: str, text: str) -> list[Mark]:
    """The places to edit that are left in a file."""
    found = []
    for match in _MARK.finditer(text):
        comment = " ".join(re.sub(r"\n\s*(?:#|//) ", " ", match[2]).split())
        sentence = re.split(r"(?<=\.)\s", comment)[0].rstrip(".")
        line = text.count("\n", 0, match.start(1)) + 1
        found.append(Mark(int(match[1]), file, line, sentence))
    return found
