# SPDX-License-Identifier: Apache-2.0
"""Where commands write: standard output, as a terminal or a pipe, and the files they are given."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, cast

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table

from opforge.errors import OpforgeError

_WIDE = 100_000  # columns of what is no terminal: more than any line has
_LEAST = 20  # columns that a column of text keeps on a narrow terminal


def console() -> Console:
    """Standard output; where it is no terminal, nothing is wrapped or cut."""
    return Console() if sys.stdout.isatty() else Console(width=_WIDE)


def say(out: Console, text: object, style: str | None = None) -> None:
    """Print a text as it is: brackets are no markup, and a terminal may wrap it."""
    out.print(str(text), highlight=False, markup=False, soft_wrap=True, style=style)


def show_table(out: Console, table: Table) -> None:
    """Print a table of which no number is cut; on a narrow terminal, columns of text wrap.

    Numbers and names are in the columns with ``no_wrap``. Where there is no room for them, lines
    are longer than the terminal is wide.
    """
    wide = out.options.update(width=_WIDE)
    for column in table.columns:
        cells = [column.header, *column.cells]
        column.min_width = max(Measurement.get(out, wide, c).maximum for c in cells)
        if not column.no_wrap:
            column.min_width, column.overflow = min(column.min_width, _LEAST), "fold"
    out.print(_Roomy(table, Measurement.get(out, wide, table).minimum), highlight=False, crop=False)


@dataclass(frozen=True)
class _Roomy:
    """A table that gets the columns it needs at the least, however wide the terminal is."""

    table: Table
    least: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from console.render(
            self.table, options.update(width=max(options.max_width, self.least))
        )


def width(out: Console, table: Table) -> int:
    """The columns that a table takes when nothing in it is wrapped."""
    return Measurement.get(out, out.options.update(width=_WIDE), table).maximum


def must_be_writable(file: Path) -> None:
    """Raise for a file that cannot be written, before the work is done that it is for."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        is_new = not file.exists()
        with file.open("ab"):
            pass
        if is_new:
            file.unlink()
    except OSError as error:
        raise OpforgeError(f"{file} cannot be written: {error.strerror}") from None


class _Pipe:
    """A stream that ends the process when nobody reads any more, as SIGPIPE ends other tools.

    Python ignores that signal, which would end us for a worker that is gone, too.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with _end_if_broken():
            return self._stream.write(text)

    def flush(self) -> None:
        with _end_if_broken():
            self._stream.flush()


@contextlib.contextmanager
def _end_if_broken() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGPIPE)
        raise


@contextlib.contextmanager
def until_nobody_reads() -> Iterator[None]:
    """Within this context a broken pipe behind standard output ends the process, quietly."""
    stream = sys.stdout
    sys.stdout = cast(TextIO, _Pipe(stream))
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stdout = stream


def plain_table(*heads: str, text: str | None = None) -> Table:
    """A table of names and numbers, which are never cut, and a last column that may wrap."""
    table = Table(box=None)
    for head in heads:
        table.add_column(head, no_wrap=True)
    if text is not None:
        table.add_column(text)
    return table
