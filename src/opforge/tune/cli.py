# SPDX-License-Identifier: Apache-2.0
"""The command ``opforge tune``, which chooses kernels for matrix products by measuring them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opforge.terminal.extras import need

if TYPE_CHECKING:
    import torch


def tune(
    op: Annotated[str, typer.Argument(metavar="OP", help="a built-in name or an op folder")],
    shape_text: Annotated[
        str | None,
        typer.Option("--shapes", help="such as 8192x4096x4096,512x4096 (default: the op's own)"),
    ] = None,
    dtype: Annotated[str, typer.Option(help="such as bfloat16,float16, or all")] = "bfloat16",
    file: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="FILE", help="the table to add to (default: your own, in use)"
        ),
    ] = None,
) -> None:
    """Measure which kernels make an op's matrix products fastest on this GPU, and keep it.

    Later calls with products of about these sizes use what was fastest. Nothing is
    measured unless this command runs. It needs a GPU.

    Example: opforge tune linear --shapes 8192x14336x4096
    """
    need("opforge tune", "bench")
    import torch
    from rich.console import Console

    from opforge import discover
    from opforge.bench import clock, shapes
    from opforge.build import choices, load
    from opforge.build.targets import CUDA
    from opforge.errors import OpforgeError
    from opforge.terminal.output import console, must_be_writable, plain_table, say, show_table
    from opforge.terminal.progress import bar
    from opforge.tune import measure, table

    record = discover.find(op)
    if not torch.cuda.is_available():
        raise OpforgeError("opforge tune measures kernels on a GPU, but there is no CUDA GPU")
    if not CUDA.sources(record):
        raise OpforgeError(f"{record.name} has no kernels for matrix products to choose from")
    chosen = shapes.parse(shape_text) if shape_text else shapes.default(record, "cuda")
    dtypes = _dtypes(dtype, record.dtypes)
    target = file or choices.own(record, choices.gpu())
    must_be_writable(target)
    out = console()
    load.find(record, CUDA.name)  # all parts, compiled side by side
    found: list[measure.Tuned] = []
    with bar("tuning", Console(stderr=True)) as progress:
        task = progress.add_task("", total=None)

        def tell(what: str) -> None:
            progress.update(task, description=what, advance=1)

        for tuned in measure.tune(record, clock.make_clock("cuda"), chosen, dtypes, tell):
            found.append(tuned)
            table.merge(target, [(tuned.product, tuned.best)])  # also if it is stopped later
    if not found:
        raise OpforgeError(
            f"{record.name} makes no product with kernels of its own at these shapes"
        )
    columns = ("product", "pass", "fastest", "µs of the pass", "TFLOP/s", "gain")
    shown = plain_table(*columns)
    for t in found:
        seconds = t.times[t.best]
        speed = f"{t.product.operations / seconds / 1e12:.0f}" if t.direction == "forward" else ""
        shown.add_row(
            str(t.product), t.direction, str(t.best), f"{seconds * 1e6:.1f}", speed, f"{t.gain:.3f}"
        )
    show_table(out, shown)
    say(out, "gain: the time with the rule of thumb divided by this one")
    say(out, f"written to {target}")
    load.choose(record, CUDA.name, choices.table(record))


def _dtypes(text: str, known: Sequence[torch.dtype]) -> list[torch.dtype]:
    from opforge.errors import OpforgeError

    by_name = {str(d).removeprefix("torch."): d for d in known}
    names = list(by_name) if text == "all" else [part.strip() for part in text.split(",")]
    if unknown := [name for name in names if name not in by_name]:
        raise OpforgeError(f"--dtype {unknown[0]}: choose from {', '.join(by_name)}, or all")
    return [by_name[name] for name in names]
