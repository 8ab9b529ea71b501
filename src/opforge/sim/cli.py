# SPDX-License-Identifier: Apache-2.0
"""The command ``opforge sim``, which runs CUDA kernels in the simulator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from opforge.terminal.extras import need
from opforge.terminal.options import Ops, records_of
from opforge.terminal.output import console, say

if TYPE_CHECKING:
    from opforge.sim.simulation import Mode


def sim(
    ops: Ops = None,
    asan: Annotated[
        bool, typer.Option("--asan", help="find out-of-bounds accesses (AddressSanitizer)")
    ] = False,
    race: Annotated[
        bool,
        typer.Option(
            "--race", help="find races, reads of uninitialized memory and misaligned accesses"
        ),
    ] = False,
    seed: Annotated[
        int | None,
        typer.Option(min=0, max=2**62 - 2, help="run threads and blocks in this random order"),
    ] = None,
    stats: Annotated[
        bool, typer.Option("--stats", help="print the memory traffic of each kernel")
    ] = False,
) -> None:
    """Run an op's CUDA kernels on the CPU, in a simulator: all cases, forward and backward.

    Results must match the float64 reference. Without --asan, they must also be
    the same for different orders of threads and blocks.

    Example: opforge sim path/to/my_op --race

    Exit code: 0 no fault found; 1 a fault was found; 2 it could not run.
    """
    need("opforge sim", "check", "numpy")
    if asan + race + stats > 1:
        raise typer.BadParameter("choose one of --asan, --race and --stats")
    if stats and seed is not None:
        raise typer.BadParameter(
            "--stats does not depend on the order of threads; leave out --seed"
        )
    from opforge.sim import command
    from opforge.sim.stats import LEGEND

    out = console()
    records = records_of(ops)
    mode: Mode = "asan" if asan else "race" if race or stats else "plain"
    outcomes = command.simulate_all(records, mode, seed, stats)
    for outcome in outcomes:
        for text in [*outcome.faults, *(f"warning: {w}" for w in outcome.warnings), *outcome.facts]:
            say(out, text)
        count = len(outcome.faults)
        found = f"{count} fault{'s' if count > 1 else ''}" if count else "no fault found"
        if outcome.runs and (not stats or count):
            say(out, f"{outcome.op}: {outcome.runs} runs, {found}")
    faulty = any(o.faults for o in outcomes)
    if stats:
        say(out, LEGEND)
    elif faulty and mode == "plain":
        say(out, "to find the cause, run again with --race and with --asan")
    raise typer.Exit(1 if faulty else 0)
