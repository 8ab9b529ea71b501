# SPDX-License-Identifier: Apache-2.0
"""The command ``opforge bench``, which times ops."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opforge.terminal.extras import need
from opforge.terminal.options import Ops, records_of


def bench(
    ops: Ops = None,
    shape_text: Annotated[
        str | None,
        typer.Option(
            "--shapes", help="such as 8192x8192,4096x50257, or one of small, large, odd, all"
        ),
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="such as bfloat16,float32, or all")] = None,
    backward: Annotated[bool, typer.Option("--backward", help="time the backward as well")] = False,
    peers: Annotated[
        str,
        typer.Option(help="all, none, or names such as eager,torch.compile and the op's own peers"),
    ] = "all",
    on: Annotated[
        str | None, typer.Option(help="cpu or cuda (default: cuda if there is a GPU)")
    ] = None,
    sweep: Annotated[
        bool, typer.Option("--sweep", help="time many sizes, to see how the cost grows")
    ] = False,
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json",
            metavar="FILE",
            help="merge the results into this file, or into <op>.json in this folder",
        ),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="compare with older results and list what got slower"),
    ] = None,
    fail_below: Annotated[
        float | None,
        typer.Option(
            metavar="RATIO",
            min=0.0,
            help="exit 1 if the speed relative to --against (or else the best peer) is lower",
        ),
    ] = None,
    commit: Annotated[
        str | None, typer.Option(help="the commit to record, if git cannot tell")
    ] = None,
    jobs: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            help="compile N workloads at a time; they are still timed one by one",
        ),
    ] = 1,
) -> None:
    """Time ops against PyTorch, other libraries and the memory ceiling, in one run.

    Example: opforge bench relu --shapes 8192x8192 --backward

    Exit code: 0 success; 1 an op is wrong, cheats or got slower; 2 it could not run.
    """
    need("opforge bench", "bench")
    from opforge.bench import (
        clock,  # noqa: F401  before any op is loaded, which could replace the functions it takes
        results,
        runner,
        shapes,
        show,
    )
    from opforge.bench.measure import OUT_OF_MEMORY
    from opforge.errors import OpforgeError
    from opforge.terminal.output import console, must_be_writable, say

    out = console()
    device = runner.choose_device(on)
    if sweep and shape_text:
        raise typer.BadParameter("choose one of --sweep and --shapes")
    chosen = shapes.sweep(device) if sweep else shapes.parse(shape_text) if shape_text else None
    if fail_below is not None and against is None and peers == "none":
        raise typer.BadParameter(
            "--fail-below needs something to compare with: give --peers or --against"
        )
    before = results.read(against) if against else None
    if before is not None and against is not None:
        results.check_device(before, runner.device_name(device), against)
    records = records_of(ops)
    files = [] if json_file is None else [results.file_for(op.name, json_file) for op in records]
    for file in dict.fromkeys(files):  # a bad file is an error before anything is timed
        if file.is_file():
            results.check_device(results.read(file), runner.device_name(device), file)
        must_be_writable(file)
        must_be_writable(file.with_name(f".{file.name}.new"))  # the file is replaced as a whole
    kept = results.Results()

    def keep(new: results.Results) -> None:
        kept.add(new)
        if json_file is not None:
            results.store(new, json_file)

    options = runner.Options(
        device,
        chosen,
        _parts(dtype) if dtype else [],
        backward,
        None if peers == "all" else [] if peers == "none" else _parts(peers),
        commit,
        jobs,
    )
    try:
        runner.run(records, options, keep)
    finally:  # show the finished rows even after Ctrl-C
        show.on_console(kept, out)
    if json_file is not None:
        say(out, f"written to {json_file}")
    ours = [r for r in kept.rows if r.implementation == results.OURS]
    faults = [r for r in ours if r.error.startswith(("wrong", "cheats", "impossible"))]
    failed = bool(faults)
    if before is not None:
        least = 0.02 if device == "cuda" else 0.1
        found, lost = results.compare(before, kept, least), results.lost(before, kept)
        if not found and not lost:
            raise OpforgeError(f"{against} has no result for any of the workloads measured now")
        failed |= show.changes(found, lost, out, fail_below)
        alone = len([r for r in ours if r.us]) - len(found)
        if alone > 0:
            say(out, f"{alone} workloads are not in {against}")
    elif fail_below is not None:
        failed |= show.losses(kept, out, fail_below)
    if not failed and not any(r.us for r in kept.rows):
        raise OpforgeError("nothing could be timed: see the errors above")
    if not failed and any(r.error and r.error != OUT_OF_MEMORY for r in ours):
        raise OpforgeError("an op could not be timed: see the errors above")
    raise typer.Exit(1 if failed else 0)


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]
