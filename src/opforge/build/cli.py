# SPDX-License-Identifier: Apache-2.0
"""The command ``opforge build``, which compiles kernels ahead of time."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from opforge.errors import OpforgeError, RecordError
from opforge.terminal.options import records_of
from opforge.terminal.output import console, plain_table, say, show_table

if TYPE_CHECKING:
    from opforge.build.cache import Library
    from opforge.op import Op
    from opforge.ship.shipment import Shipment


def build(
    ops: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="OP",
            help="built-in names or op folders (default: all built-in ops); with --wheel also a "
            "Python project that holds op folders",
        ),
    ] = None,
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
            "-o",
            help="also copy the libraries to this folder, to be loaded with OPFORGE_PREBUILT; or "
            "the folder that --wheel, --hf or --cpp write to",
        ),
    ] = None,
    wheel: Annotated[
        bool,
        typer.Option(
            "--wheel", help="write a wheel into a folder, to be published (default of --out: dist)"
        ),
    ] = False,
    hf: Annotated[
        bool,
        typer.Option("--hf", help="write a kernel for Hugging Face (default of --out: dist/<op>)"),
    ] = False,
    cpp: Annotated[
        bool, typer.Option("--cpp", help="write a folder for C++ programs (default of --out: cpp)")
    ] = False,
    force: Annotated[
        bool,
        typer.Option("--force", help="with --hf or --cpp: replace what is in the folder"),
    ] = False,
) -> None:
    """Compile kernels ahead of time, into the cache, a folder or a wheel, for Hugging Face or C++.

    Without --cpu or --cuda, it compiles all kernels that this machine can compile.

    Example: opforge build relu softmax --cuda --arch 9.0
    """
    from opforge import history
    from opforge.build import arch as architectures
    from opforge.build import compile
    from opforge.build.plan import plan_all
    from opforge.build.targets import CPU, CUDA, has_sources
    from opforge.ship import cpp as programs
    from opforge.ship import hf as kernels
    from opforge.ship import wheel as wheels
    from opforge.ship.folder import to_folder

    out = console()
    if wheel + hf + cpp > 1:
        raise RecordError("--wheel, --hf and --cpp write different things; choose one of them")
    if force and not (hf or cpp):
        raise RecordError("--force only says what --hf and --cpp may replace; leave it out")
    copied = output if not (wheel or hf or cpp) else None
    if copied and copied.exists() and not copied.is_dir():
        raise RecordError(f"--out {copied} is a file; it takes the folder for the libraries")
    dist, program = output or Path("dist"), output or Path("cpp")
    if arch:
        architectures.parse(arch)  # a typo is an error even if nothing is compiled for a GPU
    shipment = wheels.prepare(ops, dist) if wheel else None
    records = shipment.ops if shipment else records_of(ops)
    targets = [t.name for t, wished in ((CPU, cpu), (CUDA, cuda)) if wished] or _possible(out)
    if (hf or cpp) and not ops:  # composed ones need others, and some have kernels for GPUs alone
        complete = [op for op in records if all(has_sources(op, t) for t in targets)]
        records = [op for op in complete if op.self_contained]
    if hf:
        kernel = kernels.export(records, targets, arch, output, force)
        say(out, f"kernel: {kernel}")
        _say_shipped(records, kernel, out)
        return
    if cpp:
        programs.check(records, program, force)
    built = [(op, t) for op in records for t in targets if has_sources(op, t)]
    plans = [part for op, t in built for part in plan_all(op, t, arch)]
    if not plans:
        names = ", ".join(op.name for op in records)
        raise RecordError(f"nothing to build: {names} has no source for {' or '.join(targets)}")
    started = time.monotonic()
    libraries = compile.build(plans)
    placed = to_folder(libraries, copied) if copied else [b.path for b in libraries]
    show_table(out, _table(libraries, placed))
    if cpp:
        programs.to_cpp(records, libraries, program)
        say(out, f"for C++: {program}")
        _say_shipped(records, program, out)
    for op in dict.fromkeys(op for op, _ in built):
        history.keep(op, "build", {"targets": [t for other, t in built if other is op]})
        if copied:
            history.keep(op, "ship", {"what": str(copied)})
    if shipment:
        _ship(shipment, libraries, dist, out)
    count = f"{len(libraries)} librar{'y' if len(libraries) == 1 else 'ies'}"
    say(out, f"{count} in {time.monotonic() - started:.1f} s")


def _possible(out: Console) -> list[str]:
    """The targets that this machine can build."""
    from opforge.build.targets import CPU, CUDA

    found = []
    for goal in (CPU, CUDA):
        try:
            found += [goal.name] if goal.available() else []
        except OpforgeError as reason:
            say(out, f"{goal.language} kernels are left out: {reason}")
    return found


def _table(libraries: list[Library], places: list[Path]) -> Table:
    table = plain_table("op", "target", "part", "architectures", "KB", text="library")
    for facts, path in zip((library.manifest for library in libraries), places, strict=True):
        size = f"{facts['size'] // 1024}"
        archs = " ".join(facts["archs"])
        table.add_row(facts["op"], facts["target"], facts["part"], archs, size, escape(str(path)))
    return table


def _ship(shipment: Shipment, libraries: list[Library], folder: Path, out: Console) -> None:
    """Write a wheel, and say who can install it and what its author may have missed."""
    from opforge.ship import audit

    shipment.add(libraries)
    made, verdict = shipment.write(folder)
    for text in shipment.warnings:
        say(out, text, style="yellow")
    _say_shipped(shipment.ops, made, out)
    say(out, f"wheel: {made}")
    say(out, f"{verdict.platform}: {audit.readable(verdict.why)}")
    if not verdict.is_portable:
        say(out, "warning: package indexes refuse this tag; see docs/ship.md", style="yellow")
    elif not verdict.is_as_wide_as_torch:
        oldest = f"manylinux_2_{audit.TORCHS_OWN}"
        say(out, f"warning: torch itself installs on older systems ({oldest})", style="yellow")


def _say_shipped(ops: list[Op], what: Path, out: Console) -> None:
    from opforge.ship import checked

    for text in checked.shipped(ops, what):
        say(out, text, style="yellow")
