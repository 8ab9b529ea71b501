# SPDX-License-Identifier: Apache-2.0
"""The command ``opforge check``, which proves ops."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from opforge.terminal.extras import need
from opforge.terminal.options import Ops, records_of
from opforge.terminal.output import console, must_be_writable, plain_table, show_table


def check(
    ops: Ops = None,
    on: Annotated[
        str | None,
        typer.Option(
            help="where: some of cpu,sim,cuda (default: cpu,cuda, or cpu,sim without a GPU)"
        ),
    ] = None,
    full: Annotated[
        bool,
        typer.Option(
            "--full/--quick", help="all dtypes and the slow rows, or only the essentials (default)"
        ),
    ] = False,
    sanitize: Annotated[
        bool, typer.Option("--sanitize", help="also run compute-sanitizer's four tools (on a GPU)")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="seed of the random values")] = 0,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="ROW", help="run this row, by name or number; repeatable"),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="write all results to this file")
    ] = None,
    html_file: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="write an HTML page to this file")
    ] = None,
    jobs: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, help="run N rows at a time; rows that must run alone come last"
        ),
    ] = 1,
    stop: Annotated[
        bool, typer.Option("--stop", help="start no more rows after a failure")
    ] = False,
    keep_cases: Annotated[
        bool,
        typer.Option("--keep-cases", help="write the cases that a search found to the op's folder"),
    ] = False,
    rows: Annotated[bool, typer.Option("--rows", help="list all rows with their reasons")] = False,
) -> None:
    """Prove an op: seventy named tests (rows) on the CPU, in the simulator and on a GPU.

    Results are compared with the op's reference, run in float64.

    Example: opforge check path/to/my_op --full

    Exit code: 0 no row failed; 1 a row failed; 2 an op could not be checked.
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
