# SPDX-License-Identifier: Apache-2.0
"""How commands write: tables and text to a terminal or a pipe, and output files."""

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

_WIDE = 100_000  # columns if standard output is not a terminal: more than any line has
_LEAST = 20  # characters that a column of text keeps on a narrow terminal


def console() -> Console:
    """Standard output. If it is not a terminal, lines are not wrapped or cut."""
    return Console() if sys.stdout.isatty() else Console(width=_WIDE)


def say(out: Console, text: object, style: str | None = None) -> None:
    """Print a text literally, without markup. A terminal may wrap it."""
    out.print(str(text), highlight=False, markup=False, soft_wrap=True, style=style)


def show_table(out: Console, table: Table) -> None:
    """Print a table without cutting numbers. On a narrow terminal, columns of text wrap.

    Columns with ``no_wrap`` hold numbers and names. If they do not fit, lines are longer than the
    terminal is wide.
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
    """A table that gets at least the width it needs, even on a narrower terminal."""

    table: Table
    least: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from console.render(
            self.table, options.update(width=max(options.max_width, self.least))
        )


def width(out: Console, table: Table) -> int:
    """The width of a table when nothing in it is wrapped."""
    return Measurement.get(out, out.options.update(width=_WIDE), table).maximum


def must_be_writable(file: Path) -> None:
    """Raise an error if a file cannot be written. Commands call this before they start working."""
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
    """A stream that ends the process quietly when its reader has gone, as other tools do.

    Python ignores SIGPIPE. Restoring it would also end this process if a worker's pipe breaks.
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
    """A context in which a broken pipe on standard output ends the process quietly."""
    stream = sys.stdout
    sys.stdout = cast(TextIO, _Pipe(stream))
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stdout = stream


def plain_table(*heads: str, text: str | None = None) -> Table:
    """A table whose columns are never cut, with an optional last column of text that may wrap."""
    table = Table(box=None)
    for head in heads:
        table.add_column(head, no_wrap=True)
    if text is not None:
        table.add_column(text)
    return table
