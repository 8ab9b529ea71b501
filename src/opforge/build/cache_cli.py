# SPDX-License-Identifier: Apache-2.0
"""``opforge cache``."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from opforge.errors import OpforgeError
from opforge.terminal.options import records_of
from opforge.terminal.output import console, plain_table, say, show_table

cache_app = typer.Typer(help="Look into the build cache.", no_args_is_help=True)


@cache_app.command("ls")
def cache_list() -> None:
    """What is in the cache, newest first."""
    from opforge.build import cache

    out = console()
    table = plain_table("op", "target", "architectures", "KB", "built", "key")
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
    from opforge.build.plan import plan
    from opforge.build.targets import ALL, has_sources

    out = console()
    record = records_of([op])[0]
    for target in (t for t in ALL if has_sources(record, t)):
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
