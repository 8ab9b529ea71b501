# SPDX-License-Identifier: Apache-2.0
"""``opforge sim``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from opforge.extras import need
from opforge.terminal.options import Ops, records_of
from opforge.terminal.output import console, say

if TYPE_CHECKING:
    from opforge.sim.simulation import Mode


def sim(
    ops: Ops = None,
    asan: Annotated[
        bool, typer.Option("--asan", help="find accesses out of bounds (AddressSanitizer)")
    ] = False,
    race: Annotated[
        bool,
        typer.Option("--race", help="find races, reads of unwritten memory, misaligned accesses"),
    ] = False,
    seed: Annotated[
        int | None,
        typer.Option(min=0, max=2**62 - 2, help="run threads and blocks in another order"),
    ] = None,
    stats: Annotated[
        bool, typer.Option("--stats", help="print the memory traffic of each kernel")
    ] = False,
) -> None:
    """Run CUDA kernels without a GPU: every case of an op, forward and backward.

    Checks results against the float64 reference, and that they do not depend on the order of
    threads and blocks (not with --asan).
    """
    need("opforge sim", "check", "numpy")
    from opforge.sim import command
    from opforge.sim.stats import LEGEND

    out = console()
    if asan + race + stats > 1:
        raise typer.BadParameter("choose one of --asan, --race and --stats")
    records = records_of(ops)
    if stats and seed is not None:
        raise typer.BadParameter("--stats counts; it has no use for --seed")
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
        say(out, "look for the cause with --race and with --asan")
    raise typer.Exit(1 if faulty else 0)
