# SPDX-License-Identifier: Apache-2.0
"""The command ``opforge cache``, which shows and prunes the build cache."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from opforge.errors import OpforgeError
from opforge.terminal.options import records_of
from opforge.terminal.output import console, plain_table, say, show_table

if TYPE_CHECKING:
    from opforge.build.cache import Library
    from opforge.build.plan import Plan

cache_app = typer.Typer(help="Show and prune the build cache.", no_args_is_help=True)


@cache_app.command("ls")
def cache_list() -> None:
    """List the libraries in the cache, newest first."""
    from opforge.build import cache

    out = console()
    table = plain_table("op", "target", "part", "architectures", "KB", "built", "key")
    for library in cache.entries():
        facts = library.manifest
        built = time.strftime("%Y-%m-%d %H:%M", time.localtime(facts["created"]))
        size = f"{facts['size'] // 1024}"
        archs = " ".join(facts["archs"])
        names = (facts["op"], facts["target"], facts["part"])
        table.add_row(*names, archs, size, built, facts["key"][:12])
    say(out, cache.root())
    show_table(out, table)


@cache_app.command("explain")
def cache_explain(op: Annotated[str, typer.Argument(metavar="OP")]) -> None:
    """Say why an op would be built again: what has changed since the cached library.

    Example: opforge cache explain relu
    """
    from opforge.build import cache
    from opforge.build.plan import plan_all
    from opforge.build.targets import ALL, has_sources

    out = console()
    record = records_of([op])[0]
    for target in (t for t in ALL if has_sources(record, t)):
        try:
            wanted = plan_all(record, target)
        except OpforgeError as reason:
            say(out, f"{target}: {reason}")
            continue
        for planned in wanted:
            _explain(out, planned, cache.entries())


def _explain(out: Console, wanted: Plan, entries: list[Library]) -> None:
    """Say whether a library is cached, or what has changed since the last one."""
    what = f"{wanted.target} {wanted.part}".strip()
    names = {"op": wanted.op, "target": wanted.target, "part": wanted.part}
    found = [e.manifest for e in entries if names.items() <= e.manifest.items()]
    if any(e["key"] == wanted.key for e in found):
        say(out, f"{what}: cached as {wanted.entry}")
    elif not found:
        say(out, f"{what}: never built here; its key is {wanted.key[:12]}")
    else:
        say(out, f"{what}: would be built again; since {found[0]['key'][:12]}:")
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
    if name.startswith(("source", "header", "signature", "registration")):
        old, new = f"{old[:12]}…", f"{new[:12]}…"
    return f"{old} → {new}"


@cache_app.command("prune")
def cache_prune(
    everything: Annotated[bool, typer.Option("--all", help="also remove libraries in use")] = False,
    days: Annotated[
        float | None, typer.Option(min=0, help="remove only libraries older than this many days")
    ] = None,
) -> None:
    """Remove libraries that no op loads any more.

    An op counts if it is built in, or if its folder still exists. One made by opforge.inline counts
    for 30 days (or --days) after it was last made.

    Example: opforge cache prune --days 30
    """
    from opforge.build import cache, in_use

    cache.prune_inline(0 if everything else 86400 * (30 if days is None else days))
    keep = set() if everything else in_use.entries()
    count, freed = cache.prune(keep, None if days is None else days * 86400)
    say(console(), f"removed {count} entries, {freed / 1e6:.1f} MB")
