# SPDX-License-Identifier: Apache-2.0
"""The command ``opforge build``, which compiles kernels ahead of time."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from opforge.errors import OpforgeError, RecordError
from opforge.terminal.options import Ops, records_of
from opforge.terminal.output import console, plain_table, say, show_table


def build(
    ops: Ops = None,
    cpu: Annotated[bool, typer.Option("--cpu", help="compile CPU kernels")] = False,
    cuda: Annotated[
        bool, typer.Option("--cuda", help="compile CUDA kernels (needs nvcc, but no GPU)")
    ] = False,
    arch: Annotated[
        str | None, typer.Option(help="GPU architectures, such as '9.0' or 'Ampere;Hopper'")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="also put the libraries into this folder, to be loaded with OPFORGE_PREBUILT",
        ),
    ] = None,
    wheel: Annotated[
        bool, typer.Option("--wheel", help="write a wheel to --out (or dist/)")
    ] = False,
) -> None:
    """Compile kernels ahead of time, into the cache, a folder or a wheel.

    Without --cpu or --cuda, it compiles all kernels that this machine can compile.

    Example: opforge build relu softmax --cuda --arch 9.0
    """
    from opforge import history, settings
    from opforge.build import arch as architectures
    from opforge.build import compile, toolchain
    from opforge.build.plan import plan_all
    from opforge.build.targets import has_sources
    from opforge.ship.folder import to_folder
    from opforge.ship.wheel import to_wheel

    out = console()
    records = records_of(ops)
    if arch:
        architectures.parse(arch)  # a typo is an error even if nothing is compiled for a GPU
    targets = [t for t, wished in (("cpu", cpu), ("cuda", cuda)) if wished]
    if not targets:  # what this machine can build
        targets = ["cpu"]
        try:
            if settings.cuda_enabled():
                toolchain.find_cuda()
                targets.append("cuda")
        except OpforgeError as reason:
            say(out, f"CUDA kernels are left out: {reason}")
    built = [(op, t) for op in records for t in targets if has_sources(op, t)]
    plans = [part for op, t in built for part in plan_all(op, t, arch)]
    if not plans:
        names = ", ".join(op.name for op in records)
        raise RecordError(f"nothing to build: {names} has no source for {' or '.join(targets)}")
    started = time.monotonic()
    libraries = compile.build(plans)
    table = plain_table("op", "target", "part", "architectures", "KB", text="library")
    placed = to_folder(libraries, output) if output and not wheel else [b.path for b in libraries]
    for library, path in zip(libraries, placed, strict=True):
        facts = library.manifest
        size = f"{facts['size'] // 1024}"
        table.add_row(
            facts["op"],
            facts["target"],
            facts["part"],
            " ".join(facts["archs"]),
            size,
            escape(str(path)),
        )
    show_table(out, table)
    if wheel:
        made = to_wheel(records, libraries, output or Path("dist"))
        say(out, f"wheel: {made}")
    for op in records if wheel or output else ():
        history.keep(op, "ship", {"what": str(made if wheel else output)})
    count = f"{len(libraries)} librar{'y' if len(libraries) == 1 else 'ies'}"
    say(out, f"{count} in {time.monotonic() - started:.1f} s")
