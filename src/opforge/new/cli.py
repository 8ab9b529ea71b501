# SPDX-License-Identifier: Apache-2.0
"""The commands ``opforge new`` and ``opforge next``, from an idea to a shipped op."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def new(
    name: Annotated[str, typer.Argument(help="the op's name, such as my_op, or the package's")],
    kind: Annotated[
        str,
        typer.Option(
            help="elementwise, row, reduction, stencil, matmul, composed (of other ops) "
            "or blank (no kernels)"
        ),
    ] = "elementwise",
    schema: Annotated[
        str | None,
        typer.Option(help="its arguments: 'my_op(Tensor x, float scale) -> Tensor y'"),
    ] = None,
    into: Annotated[
        Path, typer.Option(metavar="FOLDER", help="the folder in which to make the new one")
    ] = Path(),
    package: Annotated[
        bool, typer.Option("--package", help="make a repository: a Python package with an op")
    ] = False,
    op: Annotated[
        str | None,
        typer.Option(help="the name of the package's first op; default: the schema's, or NAME_op"),
    ] = None,
    license: Annotated[
        str | None,
        typer.Option(help="of the package: apache-2.0, mit, bsd-3-clause or none (the default)"),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="replace files of the same names that are there")
    ] = False,
    origin: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="FILE:FUNCTION", help="write the kernels of a function's formula"
        ),
    ] = None,
    example: Annotated[
        str | None,
        typer.Option(help="for --from: shapes of its arguments, 'x: 4096x1024, weight: 1024'"),
    ] = None,
    save: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help="for --from: tensors to keep for the backward"),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check/--no-check", help="for --from: run the quick check afterwards")
    ] = True,
    bench: Annotated[
        bool, typer.Option("--bench", help="for --from: run the benchmark as well")
    ] = False,
) -> None:
    """Write the folder of a new op that works, to be edited at the marked places.

    It builds, passes the check and can be timed at once. With --package, the folder is in a
    repository with tests, CI and all that a Python package needs.

    With --from, it has the formula of a function in plain PyTorch, with kernels for it and its
    gradients.

    Example: opforge new my_op --kind row
    """
    from opforge.errors import NewError
    from opforge.new import folder, repository, request

    if origin is not None:
        if package or op is not None or license is not None or schema is not None:
            raise NewError("--from takes the op's arguments from the function: leave the rest out")
        _make(name, origin, example, save, into, force, check, bench)
        return
    if example is not None or save is not None:
        option = "--example" if example is not None else "--save"
        raise NewError(f"{option} is for formulas: opforge new {name} --from FILE:FUNCTION")
    if package:
        wanted = repository.resolve(name, op, kind, schema, license or "none")
        files = repository.write(wanted, into, force)
        _say_package(into / name, into / name / repository.op_place(wanted), files)
        return
    if op is not None or license is not None:
        option = "--op" if op is not None else "--license"
        raise NewError(f"{option} is for packages: opforge new --package NAME {option} …")
    _say_op(into / name, folder.write(request.resolve(name, kind, schema), into, force))


def _make(
    name: str,
    origin: str,
    example: str | None,
    save: str | None,
    into: Path,
    force: bool,
    check: bool,
    bench: bool,
) -> None:
    """Write the op of a formula, say what was chosen, and prove it."""
    import subprocess
    import sys

    from opforge.formula.make import make
    from opforge.terminal.output import console, say

    out, place = console(), into / name
    files, said = make(name, origin, example, save, into, force)
    say(out, f"{place}/: {', '.join(file.name for file in files)}")
    for line in said:
        say(out, line)
    commands = [["check", str(place)]] if check else []
    commands += [["bench", str(place), "--backward"]] if bench else []
    for command in commands:
        say(out, f"\nopforge {' '.join(command)}")
        done = subprocess.run([sys.executable, "-m", "opforge", *command], check=False)
        if done.returncode:
            raise typer.Exit(done.returncode)


def _say_op(place: Path, files: list[Path]) -> None:
    """Say what was written, and what to do with an op."""
    from opforge.terminal.output import console, say

    out = console()
    say(out, f"{place}/: {', '.join(file.name for file in files)}")
    say(out, "It works as it is. README.md lists the places to edit, in order. Then:\n")
    for command, why in (
        ("check", "prove it, on the CPU and in the simulator or on a GPU"),
        ("bench", "time it against PyTorch"),
        ("next", "see what is done, and what comes next"),
    ):
        say(out, f"  {f'opforge {command} {place}':<{len(str(place)) + 16}}{why}")


def _say_package(place: Path, op: Path, files: list[Path]) -> None:
    """Say what was written, and what to do with a package."""
    from opforge.terminal.output import console, say

    out = console()
    around = [str(file.relative_to(place)) for file in files if file.parent != op]
    say(out, f"{place}/: {', '.join(around)}")
    say(out, f"{op}/: {', '.join(file.name for file in files if file.parent == op)}")
    say(out, f"It works as it is. Then, in {place}:\n")
    commands = {
        'pip install -e ".[dev]"': "install it, with what its tests need",
        "pytest": "run every row of the check, for each op",
        f"opforge next {op.relative_to(place)}": "see what to edit",
        f"opforge new NAME --into {op.parent.relative_to(place)}": "add an op",
        "opforge build --wheel .": "make a wheel with compiled kernels",
    }
    for command, why in commands.items():
        say(out, f"  {command:<{max(map(len, commands)) + 2}}{why}")


def next_step(
    path: Annotated[str, typer.Argument(metavar="PATH", help="an op folder, or a built-in name")],
) -> None:
    """Show which steps of an op are done, its last results, and the command for the next step.

    Places to edit are those with an EDIT mark. Delete the mark when a place is done.

    Example: opforge next path/to/my_op
    """
    from rich.markup import escape

    from opforge.new.steps import next_of, steps
    from opforge.terminal.output import console, plain_table, say, show_table

    found = steps(path)
    marks = {
        "done": "[green]done[/]",
        "edit": "[yellow]edit[/]",
        "missing": "[yellow]to do[/]",
        "stale": "[yellow]stale[/]",
        "fault": "[red]fault[/]",
        "none": "[dim]none[/]",
    }
    table = plain_table("step", "", text="what")
    for step in found:
        table.add_row(step.name, marks[step.state], escape(step.text))
    out = console()
    show_table(out, table)
    following = next(next_of(found), None)
    say(out, f"\nnext: {following.todo}" if following else "\nEverything is done and up to date.")
