# SPDX-License-Identifier: Apache-2.0
"""The progress bar of everything that takes long."""

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
    """A bar that says ``what`` is done to the task; shown on terminals only, gone when done."""
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
