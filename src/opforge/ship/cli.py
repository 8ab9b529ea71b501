# SPDX-License-Identifier: Apache-2.0
"""The command ``opforge export``, which writes an op for other frameworks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from opforge.errors import OpforgeError
from opforge.terminal.output import console, say

if TYPE_CHECKING:
    from opforge.op import Op


def export(
    op: Annotated[str, typer.Argument(metavar="OP", help="a built-in name or an op folder")],
    kernelbench: Annotated[
        bool, typer.Option("--kernelbench", help="write a file with ModelNew for KernelBench")
    ] = False,
    deepspeed: Annotated[
        bool,
        typer.Option("--deepspeed", help="write a folder of sources with a builder of DeepSpeed"),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="the file or folder (default: <op>_kernelbench.py or <op>_deepspeed)",
        ),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(
            help="with --kernelbench: the problem, a file with Model (default: one is made of the "
            "reference)"
        ),
    ] = None,
    call: Annotated[
        str | None,
        typer.Option(
            help="with --kernelbench: what forward of ModelNew returns, such as "
            "'relu(self.linear(x))' (default: the op, with inputs and attributes of its "
            "arguments' names)"
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="replace what is there")] = False,
) -> None:
    """Write an op's sources for another framework, where they need no opforge.

    Example: opforge export scale_bias_relu --kernelbench --model problem.py --out answer.py
    """
    if kernelbench == deepspeed:
        raise OpforgeError("say what to write: --kernelbench or --deepspeed, one of them")
    if deepspeed and (model or call):
        raise OpforgeError("--model and --call go with --kernelbench")

    from opforge import discover
    from opforge.ship import checked

    out = console()
    record = discover.find(op)
    if kernelbench:
        made = output or Path(f"{record.name}_kernelbench.py")
        _kernelbench(record, made, model, call, force, out)
    else:
        from opforge.integrations.deepspeed import export_sources

        made = output or Path(f"{record.name}_deepspeed")
        say(out, f"sources: {export_sources(record, made, force)}")
    for text in checked.shipped([record], made):
        say(out, text, style="yellow")


def _kernelbench(
    record: Op, file: Path, model: Path | None, call: str | None, force: bool, out: Console
) -> None:
    from opforge.ship.kernelbench.answer import answer, check
    from opforge.ship.kernelbench.from_reference import problem_of
    from opforge.ship.kernelbench.problem import Problem

    check(record)
    files = {}
    if model is None:
        text, made = problem_of(record)
        beside = file.with_name(f"{file.stem}_model.py")
        files[beside] = text
        problem, call = Problem(text, str(beside)), call or made
    else:
        try:
            problem = Problem(model.read_text(encoding="utf-8"), str(model))
        except UnicodeDecodeError as error:
            raise OpforgeError(f"{model} is not UTF-8: {error}") from None
    files[file] = answer(record, problem, call)
    for path in files:
        if path.exists() and not force:
            raise OpforgeError(f"{path} exists; choose another --out, or replace it with --force")
    said = problem.compare(record, call)
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        say(out, f"{'ModelNew' if path == file else 'Model'}: {path}")
    say(out, said)
