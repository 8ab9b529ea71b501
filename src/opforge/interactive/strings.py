# SPDX-License-Identifier: Apache-2.0
"""Finds the line of a script or a notebook where a string was written."""

from __future__ import annotations

import ast
import linecache
import sys
import types
from dataclasses import dataclass
from typing import Any, Protocol

from opforge.build.origins import Origin


class Place(Protocol):
    """Where strings were written."""

    def origin(self, text: str, source: str, first: int, columns: bool = True) -> Origin:
        """Where ``text`` was written, which is in ``source`` from the line ``first`` on."""


@dataclass(frozen=True)
class Cell:
    """A cell that is one string, from a line of it on."""

    title: str
    line: int

    @classmethod
    def of(cls, frame: types.FrameType | None, line: int) -> Cell:
        """The cell that is being run."""
        while frame is not None and not title_of_cell(frame.f_code.co_filename):
            frame = frame.f_back
        return cls(title_of_cell(frame.f_code.co_filename) if frame else "the cell", line)

    def origin(self, text: str, source: str, first: int, columns: bool = True) -> Origin:
        """Where ``text`` was written, which is in ``source`` from the line ``first`` on."""
        return Origin(source, first, text.count("\n") + 1, self.title, self.line, 1, columns)


@dataclass(frozen=True)
class Caller:
    """A script or a cell, and the line in it that calls opforge."""

    file: str  # as tracebacks name it
    line: int

    @classmethod
    def of(cls, frame: types.FrameType) -> Caller:
        """The place that a frame is at."""
        return cls(frame.f_code.co_filename, frame.f_lineno)

    def origin(self, text: str, source: str, first: int, columns: bool = True) -> Origin:
        """Where ``text`` was written, which is in ``source`` from the line ``first`` on."""
        count = text.count("\n") + 1
        title = title_of_cell(self.file) or self.file
        lines = linecache.getlines(self.file)
        node = _literal(lines, text, self.line)
        if node is None or node.end_lineno is None:
            return Origin(source, first, count, title, self.line, 0, False)
        shift = node.end_lineno - node.lineno - (count - 1)
        after_quotes = lines[node.lineno - 1].rstrip().endswith(('"""\\', "'''\\"))
        if shift == 0 or (shift == 1 and after_quotes):
            return Origin(source, first, count, title, node.lineno + shift, 1, columns)
        return Origin(source, first, count, title, node.lineno, 0, False)


def title_of_cell(file: str) -> str:
    """``In[3]`` for a cell of a notebook, as tracebacks name it; "" for another file."""
    ipython = sys.modules.get("IPython")
    shell: Any = ipython.get_ipython() if ipython else None
    label = shell.compile.format_code_name(file) if shell else None
    return label[1] if label else ""


def _literal(lines: list[str], text: str, near: int) -> ast.Constant | None:
    """The string in a file, the nearest to a line if there are several."""
    try:
        flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        tree: Any = compile("".join(lines), "", "exec", flags)
    except SyntaxError:
        return None
    found = [n for n in ast.walk(tree) if isinstance(n, ast.Constant) and n.value == text]
    return min(found, key=lambda n: abs(n.lineno - near), default=None)
