# SPDX-License-Identifier: Apache-2.0
"""The commands ``opforge doctor`` and ``opforge list``."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from opforge.terminal.options import Ops, records_of
from opforge.terminal.output import console, plain_table, show_table


def doctor(as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False) -> None:
    """Show what opforge finds on this machine, and how to install what is missing.

    Example: opforge doctor
    """
    from opforge.doctor.examine import examine

    findings = examine()
    if as_json:
        print(json.dumps([f.__dict__ for f in findings], indent=1))
    else:
        table = plain_table("", "what", text="found")
        for f in findings:
            mark = {"ok": "[green]ok[/]", "note": "[yellow]--[/]", "fault": "[red]!![/]"}[f.state]
            found = f.found + (f"\n→ {f.remedy}" if f.remedy else "")
            table.add_row(mark, escape(f.what), escape(found))
        show_table(console(), table)
    raise typer.Exit(1 if any(f.state == "fault" for f in findings) else 0)


def list_ops(ops: Ops = None) -> None:
    """List ops with their schemas, kernels and dtypes.

    In a pipe, each op is one line with tab-separated columns.

    Example: opforge list relu
    """
    from opforge.build.targets import FOR_USERS, has_sources

    out = console()
    table = Table("op", "schema", "kernels", "dtypes", box=None)
    for op in records_of(ops):
        kernels = ", ".join(t for t in FOR_USERS if has_sources(op, t)) or "reference only"
        dtypes = ", ".join(str(d).removeprefix("torch.") for d in op.dtypes)
        schemas = [s.text for s in op.functions]
        if out.is_terminal:
            table.add_row(op.name, escape("\n".join(schemas)), kernels, dtypes)
        else:
            typer.echo("\t".join([op.name, "; ".join(schemas), kernels, dtypes]))
    if out.is_terminal:
        table.columns[0].no_wrap = True
        show_table(out, table)
