# SPDX-License-Identifier: Apache-2.0
"""The cache entries that would be loaded now, by the built-in ops and by op folders."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from opforge import discover
from opforge.build import cache
from opforge.build.plan import Plan, plan_all, plan_guard, plan_recorder, plan_simulator
from opforge.build.targets import ALL, has_sources
from opforge.errors import OpforgeError
from opforge.op import Op


def entries() -> set[str]:
    """The names of the entries; a folder whose record cannot be read keeps all that it has."""
    found = set[str]().union(*map(_planned, (plan_simulator, plan_recorder, plan_guard)))
    for name in discover.builtin_names():
        found |= _of(discover.find(name))
    for folder, built in _by_folder().items():
        try:
            records = discover.unregistered(folder)
        except (Exception, SystemExit):  # an op.py is a program, and may be half written
            found |= built
            continue
        for op in records:
            found |= _of(op)
    return found


def _by_folder() -> dict[Path, set[str]]:
    """The op folders that are still there -> the entries that were built from them."""
    found: dict[Path, set[str]] = {}
    for library in cache.entries():
        folder = Path(library.manifest.get(cache.SOURCE_FOLDER, ""))
        if folder.parent != discover.BUILTIN_FOLDER and (folder / "op.py").is_file():
            found.setdefault(folder, set()).add(library.folder.name)
    return found


def _of(op: Op) -> set[str]:
    targets = [t for t in ALL if has_sources(op, t)]
    return {entry for t in targets for entry in _planned(plan_all, op, t)}


def _planned(make: Callable[..., Plan | list[Plan]], *arguments: object) -> set[str]:
    with contextlib.suppress(OpforgeError):  # no compiler: nothing of it would be loaded
        made = make(*arguments)
        return {one.entry for one in (made if isinstance(made, list) else [made])}
    return set()
