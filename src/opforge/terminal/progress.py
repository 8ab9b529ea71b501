# SPDX-License-Identifier: Apache-2.0
"""The progress bar of long tasks."""

from __future__ import annotations

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


def bar(what: str, console: Console, quiet: bool = False) -> Progress:
    """A progress bar labelled ``what``. Only terminals show it, and it disappears at the end."""
    return Progress(
        TextColumn(f"opforge: {what} {{task.description}}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=quiet or not console.is_terminal,
    )
