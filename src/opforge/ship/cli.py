# SPDX-License-Identifier: Apache-2.0
"""The command ``opforge export``, which writes an op for other frameworks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opforge.errors import OpforgeError
from opforge.terminal.output import console, say


def export(
    op: Annotated[str, typer.Argument(metavar="OP", help="a built-in name or an op folder")],
    kernelbench: Annotated[
        bool, typer.Option("--kernelbench", help="write a file with ModelNew for KernelBench")
    ] = False,
    model: Annotated[
        Path | None,
        typer.Option(help="the problem: a file with Model (default: one is made of the reference)"),
    ] = None,
    call: Annotated[
        str | None,
        typer.Option(
            help="what forward of ModelNew returns, such as 'relu(self.linear(x))' "
            "(default: the op, with inputs and attributes of its arguments' names)"
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", help="the file (default: <op>_kernelbench.py)")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="replace files that are there")] = False,
) -> None:
    """Write an op as one file that needs no opforge.

    Example: opforge export scale_bias_relu --kernelbench --model problem.py -o answer.py
    """
    if not kernelbench:
        raise OpforgeError("say what to write; there is one format: --kernelbench")

    from opforge import discover
    from opforge.ship.kernelbench.answer import answer, check
    from opforge.ship.kernelbench.from_reference import problem_of
    from opforge.ship.kernelbench.problem import Problem

    out = console()
    record = discover.find(op)
    check(record)
    file = output or Path(f"{record.name}_kernelbench.py")
    files = {}
    if model is None:
        text, made = problem_of(record)
        beside = file.with_name(f"{file.stem}_model.py")
        files[beside] = text
        problem, call = Problem(text, str(beside)), call or made
    else:
        problem = Problem(model.read_text(encoding="utf-8"), str(model))
    files[file] = answer(record, problem, call)
    for path in files:
        if path.exists() and not force:
            raise OpforgeError(f"{path} exists; choose another -o, or replace it with --force")
    said = problem.compare(record, call)
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        say(out, f"{'ModelNew' if path == file else 'Model'}: {path}")
    say(out, said)
