# SPDX-License-Identifier: Apache-2.0
"""``opforge check``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from opforge.extras import need
from opforge.terminal.options import Ops, records_of
from opforge.terminal.output import console, must_be_writable, plain_table, show_table


def check(
    ops: Ops = None,
    on: Annotated[
        str | None,
        typer.Option(help="where: some of cpu,sim,cuda (default: cpu,cuda; without a GPU cpu,sim)"),
    ] = None,
    full: Annotated[
        bool,
        typer.Option(
            "--full/--quick", help="every dtype and what takes long, or the essence (default)"
        ),
    ] = False,
    sanitize: Annotated[
        bool, typer.Option("--sanitize", help="also compute-sanitizer's four tools, on a GPU")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="other random values")] = 0,
    only: Annotated[
        list[str] | None, typer.Option(metavar="ROW", help="rows by name or number; repeatable")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="write everything there")
    ] = None,
    html_file: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="write a page for a browser there")
    ] = None,
    jobs: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, help="run N rows at a time; what must be alone comes after them"
        ),
    ] = 1,
    stop: Annotated[
        bool, typer.Option("--stop", help="begin no row after one that failed")
    ] = False,
    keep_cases: Annotated[
        bool,
        typer.Option("--keep-cases", help="write the cases that were found into the op's folder"),
    ] = False,
    rows: Annotated[bool, typer.Option("--rows", help="list the rows and why they are")] = False,
) -> None:
    """Prove an op: seventy named rows, each run on CPU kernels, in the simulator, on a GPU.

    Exit code 0: no row failed. 1: a row failed, with a script to see it again. 2: not checkable.
    """
    if not rows:
        need("opforge check", "check")
    from opforge.check import row as scoreboard
    from opforge.check import runner, show
    from opforge.check.options import Options
    from opforge.check.search import stored

    out = console()
    if rows:
        table = plain_table("", "row", "where", text="why")
        for r in scoreboard.all_rows():
            star = "★" if r.star else ""
            table.add_row(f"{r.number or ''}{star}", r.name, " ".join(r.letters), escape(r.reason))
        show_table(out, table)
        return
    places = tuple(p.strip() for p in on.split(",")) if on else ()
    options = Options(places, full, sanitize, seed, tuple(only or ()), jobs=jobs, stop=stop)
    records = records_of(ops)
    for file in (f for f in (json_file, html_file) if f is not None):
        must_be_writable(file)
    try:
        report = runner.check(records, options)
    except runner.Interrupted as interruption:
        report = interruption.report
    show.on_console(report, out)
    for record in records if keep_cases else ():
        if path := stored.keep(record):
            out.print(f"found cases: {path}", highlight=False, soft_wrap=True)
    show.write(report, json_file, html_file)
    raise typer.Exit(report.exit_code)
