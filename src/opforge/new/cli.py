# SPDX-License-Identifier: Apache-2.0
"""The commands ``opforge new`` and ``opforge next``, from an idea to a shipped op."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def new(
    name: Annotated[str, typer.Argument(help="the op's name, such as my_op")],
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
        Path, typer.Option(metavar="FOLDER", help="the folder in which to make the op's own")
    ] = Path(),
    force: Annotated[
        bool, typer.Option("--force", help="replace files of the same names that are there")
    ] = False,
) -> None:
    """Write the folder of a new op that works, to be edited at the marked places.

    It builds, passes the check and can be timed at once.

    Example: opforge new my_op --kind row
    """
    from opforge.new import folder, request
    from opforge.terminal.output import console, say

    wanted = request.resolve(name, kind, schema)
    files = folder.write(wanted, into, force)
    place = into / name
    out = console()
    say(out, f"{place}/: {', '.join(file.name for file in files)}")
    say(out, "It works as it is. README.md lists the places to edit, in order. Then:\n")
    for command, why in (
        ("check", "prove it, on the CPU and in the simulator or on a GPU"),
        ("bench", "time it against PyTorch"),
        ("next", "see what is done, and what comes next"),
    ):
        say(out, f"  {f'opforge {command} {place}':<{len(str(place)) + 16}}{why}")
