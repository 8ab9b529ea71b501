# SPDX-License-Identifier: Apache-2.0
"""The ``opforge`` command. Exit codes: 0 success, 1 a fault was found, 2 it could not run."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

# None of these modules imports torch before a command runs, so that --help is quick.
from opforge import __version__
from opforge.bench.cli import bench
from opforge.build.cache_cli import cache_app
from opforge.build.cli import build
from opforge.check.cli import check
from opforge.doctor.cli import doctor, list_ops
from opforge.errors import OpforgeError
from opforge.new.cli import new, next_step
from opforge.profile.cli import profile
from opforge.report.cli import report
from opforge.ship.cli import export
from opforge.sim.cli import sim
from opforge.terminal.output import until_nobody_reads
from opforge.tune.cli import tune

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (new, check, sim, bench, tune, profile, report, build, export, doctor):
    app.command()(command)
app.command("next")(next_step)
app.command("list")(list_ops)
app.add_typer(cache_app, name="cache")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"opforge {__version__}")
        raise typer.Exit


@app.callback()
def opforge(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Fused GPU operators for PyTorch, and the tools to write, prove and time your own.

    An OP is the name of a built-in op (opforge list) or the path of an op folder.

    Example: opforge check relu --on cpu
    """


def main() -> None:
    """Run the command. An expected error prints one line and exits with 2."""
    try:
        with until_nobody_reads():
            app()
    except (OpforgeError, OSError) as error:
        print(f"opforge: {error}", file=sys.stderr)
        sys.exit(2)
