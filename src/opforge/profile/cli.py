# SPDX-License-Identifier: Apache-2.0
"""The command ``opforge profile``, which says what limits a kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def profile(
    op: Annotated[str, typer.Argument(metavar="OP", help="a built-in name or an op folder")],
    shape: Annotated[str, typer.Option(help="shape of the inputs")] = "8192x8192",
    dtype: Annotated[
        str | None, typer.Option(help="dtype of the inputs (default: bfloat16 if the op takes it)")
    ] = None,
    backward: Annotated[
        bool, typer.Option("--backward", help="profile the backward as well")
    ] = False,
    timeline: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="record a timeline instead, or print the nsys command for it"
        ),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="write all results to this file")
    ] = None,
) -> None:
    """Say what limits an op's kernels on a GPU, and what to try next.

    This needs a GPU and Nsight Compute. Without them, the facts come from the
    compiled code and the simulator.

    Example: opforge profile softmax --shape 4096x8192 --backward
    """
    import json

    from opforge import history
    from opforge.profile import report, request, show
    from opforge.profile import timeline as timelines
    from opforge.profile.advice import advise
    from opforge.terminal.output import console, must_be_writable, say

    if timeline is not None and json_file is not None:
        raise typer.BadParameter("choose one of --timeline and --json")
    wanted = request.resolve(op, shape, dtype, backward)
    if json_file is not None:
        must_be_writable(json_file)
    out = console()
    if timeline is not None:
        say(out, timelines.timeline(wanted, timeline))
        return
    found = report.make(wanted)
    show.on_console(found, out)
    advice = [text for call in found.calls for text in advise(call)]
    facts = {"title": found.title, "advice": advice[0] if advice else "nothing to advise"}
    history.keep(wanted.op, "profile", facts)
    if json_file is not None:
        json_file.write_text(json.dumps(found.as_json(), indent=1) + "\n")
