# SPDX-License-Identifier: Apache-2.0
"""The command ``opforge report``, which makes an HTML page from results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="RESULTS",
            help="files or folders of `opforge bench --json` and `opforge check --json`; "
            "default: benchmarks/results",
        ),
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="the page to write")
    ] = Path("report.html"),
    title: Annotated[str, typer.Option(help="title of the page")] = "opforge report",
) -> None:
    """Make one HTML page from results: plots, tables, losses and failures.

    Example: opforge report results.json -o report.html
    """
    from opforge.report.load import load
    from opforge.report.markup import count
    from opforge.report.page import page
    from opforge.terminal.output import must_be_writable

    must_be_writable(output)
    results, reports = load(files or [])
    text = page(results, reports, title)
    output.write_text(text, encoding="utf-8")
    contents = f"{count(len(results.rows), 'measurement')}, {count(len(reports), 'check')}"
    typer.echo(f"wrote {output}: {contents}, {len(text.encode()) / 1e3:.0f} KB")
