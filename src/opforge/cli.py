# SPDX-License-Identifier: Apache-2.0
"""The ``opforge`` command. Exit codes: 0 fine, 1 found a fault, 2 could not run."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

# Nothing here or in these modules imports torch before a command runs: --help is to be quick.
from opforge import __version__
from opforge.bench.cli import Ops, bench
from opforge.errors import OpforgeError, RecordError
from opforge.output import console, must_be_writable, say, show_table, until_nobody_reads
from opforge.profile.cli import profile
from opforge.report.cli import report as report_page

if TYPE_CHECKING:
    from opforge.op import Op
    from opforge.sim import Mode

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
cache_app = typer.Typer(help="Look into the build cache.", no_args_is_help=True)
app.add_typer(cache_app, name="cache")

app.command()(bench)
app.command()(profile)
app.command("report")(report_page)


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
    """Build, inspect and ship custom PyTorch operators."""


def _records(names: list[str] | None) -> list[Op]:
    from opforge import discover

    return [discover.find(name) for name in names or discover.builtin_names()]


@app.command()
def build(
    ops: Ops = None,
    cpu: Annotated[bool, typer.Option("--cpu", help="CPU kernels")] = False,
    cuda: Annotated[bool, typer.Option("--cuda", help="CUDA kernels; needs nvcc, no GPU")] = False,
    arch: Annotated[
        str | None, typer.Option(help="GPU architectures, such as '9.0' or 'Ampere;Hopper'")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--out", help="put the libraries into this folder as well")
    ] = None,
    wheel: Annotated[
        bool, typer.Option("--wheel", help="write a wheel to --out (or dist/)")
    ] = False,
) -> None:
    """Compile kernels: into the cache, a folder for OPFORGE_PREBUILT, or a wheel."""
    from opforge import settings
    from opforge.build import arch as architectures
    from opforge.build import compile, ship, toolchain
    from opforge.build.plan import has_sources, plan

    out = console()
    records = list(dict.fromkeys(_records(ops)))
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
    plans = [plan(op, t, arch) for op in records for t in targets if has_sources(op, t)]
    if not plans:
        names = ", ".join(op.name for op in records)
        raise RecordError(f"nothing to build: {names} has no source for {' or '.join(targets)}")
    started = time.monotonic()
    libraries = compile.build(plans)
    table = _table("op", "target", "architectures", "KB", text="library")
    placed = (
        ship.to_folder(libraries, output) if output and not wheel else [b.path for b in libraries]
    )
    for library, path in zip(libraries, placed, strict=True):
        facts = library.manifest
        size = f"{facts['size'] // 1024}"
        table.add_row(
            facts["op"], facts["target"], " ".join(facts["archs"]), size, escape(str(path))
        )
    show_table(out, table)
    if wheel:
        made = ship.to_wheel(records, libraries, output or Path("dist"))
        say(out, f"wheel: {made}")
    count = f"{len(libraries)} librar{'y' if len(libraries) == 1 else 'ies'}"
    say(out, f"{count} in {time.monotonic() - started:.1f} s")


def _table(*heads: str, text: str | None = None) -> Table:
    """A table of names and numbers, which are never cut, and a last column that may wrap."""
    table = Table(box=None)
    for head in heads:
        table.add_column(head, no_wrap=True)
    if text is not None:
        table.add_column(text)
    return table


@app.command("list")
def list_ops(ops: Ops = None) -> None:
    """The ops: their schemas, dtypes and what they have kernels for.

    In a pipe one op a line, the parts separated by tabs.
    """
    from opforge.build.plan import TARGETS, has_sources

    out = console()
    table = Table("op", "schema", "kernels", "dtypes", box=None)
    for op in _records(ops):
        kernels = ", ".join(t for t in TARGETS if has_sources(op, t)) or "reference only"
        dtypes = ", ".join(str(d).removeprefix("torch.") for d in op.dtypes)
        schemas = [s.text for s in op.kernels]
        if out.is_terminal:
            table.add_row(op.name, escape("\n".join(schemas)), kernels, dtypes)
        else:
            typer.echo("\t".join([op.name, "; ".join(schemas), kernels, dtypes]))
    if out.is_terminal:
        table.columns[0].no_wrap = True
        show_table(out, table)


@app.command()
def doctor(as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False) -> None:
    """What is found on this machine, and a remedy for each thing that is missing."""
    from opforge import doctor as examination

    findings = examination.examine()
    if as_json:
        print(json.dumps([f.__dict__ for f in findings], indent=1))
    else:
        table = _table("", "what", text="found")
        for f in findings:
            mark = {"ok": "[green]ok[/]", "note": "[yellow]--[/]", "fault": "[red]!![/]"}[f.state]
            found = f.found + (f"\n→ {f.remedy}" if f.remedy else "")
            table.add_row(mark, escape(f.what), escape(found))
        show_table(console(), table)
    raise typer.Exit(1 if any(f.state == "fault" for f in findings) else 0)


@app.command()
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
    from opforge.sim import command
    from opforge.sim.stats import LEGEND

    out = console()
    if asan + race + stats > 1:
        raise typer.BadParameter("choose one of --asan, --race and --stats")
    records = list(dict.fromkeys(_records(ops)))
    if stats and seed is not None:
        raise typer.BadParameter("--stats counts; it has no use for --seed")
    mode: Mode = "asan" if asan else "race" if race or stats else "plain"
    outcomes = command.simulate_all(records, mode, seed, stats)
    for outcome in outcomes:
        for text in [*outcome.faults, *(f"warning: {w}" for w in outcome.warnings), *outcome.facts]:
            say(out, text)
        count = len(outcome.faults)
        found = f"{count} fault{'s' if count > 1 else ''}" if count else "no fault found"
        if not stats or count:
            say(out, f"{outcome.op}: {outcome.runs} runs, {found}")
    faulty = any(o.faults for o in outcomes)
    if stats:
        say(out, LEGEND)
    elif faulty and mode == "plain":
        say(out, "look for the cause with --race and with --asan")
    raise typer.Exit(1 if faulty else 0)


@app.command()
def check(
    ops: Ops = None,
    on: Annotated[
        str | None,
        typer.Option(help="where: some of cpu,sim,cuda (default: cpu,cuda; without a GPU cpu,sim)"),
    ] = None,
    full: Annotated[
        bool,
        typer.Option(
            "--full/--quick", help="every dtype and what takes long, or the essence (default)"
        ),
    ] = False,
    sanitize: Annotated[
        bool, typer.Option("--sanitize", help="also compute-sanitizer's four tools, on a GPU")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="other random values")] = 0,
    only: Annotated[
        list[str] | None, typer.Option(metavar="ROW", help="rows by name or number; repeatable")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="write everything there")
    ] = None,
    html_file: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="write a page for a browser there")
    ] = None,
    jobs: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, help="run N rows at a time; what must be alone comes after them"
        ),
    ] = 1,
    stop: Annotated[
        bool, typer.Option("--stop", help="begin no row after one that failed")
    ] = False,
    keep_cases: Annotated[
        bool,
        typer.Option("--keep-cases", help="write the cases that were found into the op's folder"),
    ] = False,
    rows: Annotated[bool, typer.Option("--rows", help="list the rows and why they are")] = False,
) -> None:
    """Prove an op: seventy named rows, each run on CPU kernels, in the simulator, on a GPU.

    Exit code 0: no row failed. 1: a row failed, with a script to see it again. 2: not checkable.
    """
    from opforge.check import row as scoreboard
    from opforge.check import runner, show
    from opforge.check.options import Options
    from opforge.check.search import stored

    out = console()
    if rows:
        table = _table("", "row", "where", text="why")
        for r in scoreboard.all_rows():
            star = "★" if r.star else ""
            table.add_row(f"{r.number or ''}{star}", r.name, " ".join(r.letters), escape(r.reason))
        show_table(out, table)
        return
    places = tuple(p.strip() for p in on.split(",")) if on else ()
    options = Options(places, full, sanitize, seed, tuple(only or ()), jobs=jobs, stop=stop)
    records = list(dict.fromkeys(_records(ops)))
    for file in (f for f in (json_file, html_file) if f is not None):
        must_be_writable(file)
    try:
        report = runner.check(records, options)
    except runner.Interrupted as interruption:
        report = interruption.report
    show.on_console(report, out)
    for record in records if keep_cases else ():
        if path := stored.keep(record):
            out.print(f"found cases: {path}", highlight=False, soft_wrap=True)
    show.write(report, json_file, html_file)
    raise typer.Exit(report.exit_code)


@cache_app.command("ls")
def cache_list() -> None:
    """What is in the cache, newest first."""
    from opforge.build import cache

    out = console()
    table = _table("op", "target", "architectures", "KB", "built", "key")
    for library in cache.entries():
        facts = library.manifest
        built = time.strftime("%Y-%m-%d %H:%M", time.localtime(facts["created"]))
        size = f"{facts['size'] // 1024}"
        archs = " ".join(facts["archs"])
        table.add_row(facts["op"], facts["target"], archs, size, built, facts["key"][:12])
    say(out, cache.root())
    show_table(out, table)


@cache_app.command("explain")
def cache_explain(op: Annotated[str, typer.Argument(metavar="OP")]) -> None:
    """Which ingredient of an op's key differs from what is in the cache."""
    from opforge.build import cache
    from opforge.build.plan import CHECK_TARGETS, TARGETS, has_sources, plan

    out = console()
    record = _records([op])[0]
    for target in (t for t in (*TARGETS, *CHECK_TARGETS) if has_sources(record, t)):
        try:
            wanted = plan(record, target)
        except OpforgeError as reason:
            say(out, f"{target}: {reason}")
            continue
        found = [
            e.manifest
            for e in cache.entries()
            if e.manifest["op"] == record.name and e.manifest["target"] == target
        ]
        if any(e["key"] == wanted.key for e in found):
            say(out, f"{target}: cached as {wanted.entry}")
        elif not found:
            say(out, f"{target}: never built here; its key is {wanted.key[:12]}")
        else:
            say(out, f"{target}: would be built again; since {found[0]['key'][:12]}:")
            old, new = found[0]["ingredients"], wanted.ingredients
            for name in sorted({*old, *new}):
                if old.get(name) != new.get(name):
                    change = _difference(name, old.get(name), new.get(name))
                    say(out, f"  {name} changed: {change}")


def _difference(name: str, old: str | None, new: str | None) -> str:
    if old is None or new is None:
        return "new" if old is None else "gone"
    if name in ("flags", "link", "architectures"):  # many words: only those that differ
        before, after = old.split(), new.split()
        gone = [f"without {w}" for w in before if w not in after]
        added = [f"with {w}" for w in after if w not in before]
        return ", ".join(gone + added) or "their order"
    if name.startswith(("source", "header", "signature")):
        old, new = f"{old[:12]}…", f"{new[:12]}…"
    return f"{old} → {new}"


@cache_app.command("prune")
def cache_prune(
    everything: Annotated[bool, typer.Option("--all", help="also what is in use")] = False,
    days: Annotated[float | None, typer.Option(min=0, help="only what is older than this")] = None,
) -> None:
    """Remove libraries that no op would load any more: no built-in one, and none in its folder."""
    from opforge.build import cache, in_use

    keep = set() if everything else in_use.entries()
    count, freed = cache.prune(keep, None if days is None else days * 86400)
    say(console(), f"removed {count} entries, {freed / 1e6:.1f} MB")


def main() -> None:
    """Run the command; expected errors are one line and exit code 2."""
    try:
        with until_nobody_reads():
            app()
    except (OpforgeError, OSError) as error:
        print(f"opforge: {error}", file=sys.stderr)
        sys.exit(2)
