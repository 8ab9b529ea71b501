# SPDX-License-Identifier: Apache-2.0
"""Stores the recipes that a search has found, next to the build cache or in the op's folder.

They are valid for the sources they were found with. After a change, the next search starts from
them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opforge import settings
from opforge.build import cache
from opforge.build.plan import plan
from opforge.build.targets import Target
from opforge.check.place import PLACES, SIM, Place
from opforge.check.search import recipe
from opforge.check.search.recipe import Recipe
from opforge.check.search.search import Search, Tell
from opforge.errors import CacheError, OpforgeError, ToolchainError
from opforge.op import Op

FILE = "cases.json"  # in an op's folder
QUICK, FULL = 5.0, 60.0  # seconds that a search may take
_SEARCHED = [name for name, kind in PLACES.items() if kind.coverage]
_SEARCH = 2  # version, increased when a search finds more than before


@dataclass(frozen=True)
class Stored:
    """The recipes of an op at a place, and the sources they were found with."""

    recipes: list[Recipe] = field(default_factory=list)
    sources: str = ""  # digest
    seconds: float = 0.0  # length of the search


def load(op: Op, place: str) -> Stored:
    """The stored recipes, preferably those found with the current sources."""
    found = [_read(path, place) for path in (_beside_cache(op), _in_folder(op)) if path is not None]
    digest = sources(op, place)
    fitting = [s for s in found if s.sources == digest and s.recipes]
    best = sorted(fitting or found, key=lambda s: (s.seconds, len(s.recipes)))
    return best[-1] if best else Stored()


def found(op: Op, place: str, seed: int, full: bool, tell: Tell | None = None) -> list[Recipe]:
    """The recipes for an op at a place. If there are none, it searches, except on a GPU.

    Raises ToolchainError if the tools for a search are missing.
    """
    if place not in _SEARCHED:
        return load(op, SIM.name).recipes
    budget = FULL if full else QUICK
    with cache.lock(f"{op.name}-{place}-cases"):
        known = load(op, place)
        if known.sources == sources(op, place) and known.seconds >= budget:
            return known.recipes
        search = Search(op, place, seed, tell)
        search.replay(known.recipes)
        search.explore(budget)
        recipes = search.found.recipes
        save(_beside_cache(op), op, place, Stored(recipes, sources(op, place), budget))
        return recipes


def keep(op: Op) -> Path | None:
    """Write the recipes of an op to its folder. Returns the file, or None if there are none."""
    path = _in_folder(op)
    kept = False
    for place in _SEARCHED:
        known = load(op, place)
        if known.recipes:
            save(path, op, place, known)
            kept = True
    return path if kept else None


def save(path: Path | None, op: Op, place: str, stored: Stored) -> None:
    """Write the recipes for one place. Those for other places stay in the file."""
    assert path is not None
    data = _json(path)
    data[place] = {
        "sources": stored.sources,
        "seconds": stored.seconds,
        "cases": [r.as_json() for r in stored.recipes],
    }
    path.parent.mkdir(mode=0o700, exist_ok=True)
    cache.replace_text(path, _text({"op": op.name, **data}))
    path.chmod(0o644)


def _text(data: dict[str, Any]) -> str:
    """JSON with one case per line, which is readable in a diff."""
    parts = [f' "op": {json.dumps(data["op"])}']
    for place in (p for p in _SEARCHED if p in data):
        one = data[place]
        cases = ",\n".join(f"   {json.dumps(c)}" for c in one["cases"])
        parts.append(
            f' "{place}": {{\n  "sources": "{one["sources"]}",\n  "seconds": {one["seconds"]},\n'
            f'  "cases": [\n{cases}\n  ]\n }}'
        )
    return "{\n" + ",\n".join(parts) + "\n}\n"


def sources(op: Op, place: str) -> str:
    """A digest of the search, the record and the kernel sources, or "" if it is unknown."""
    try:
        parts = plan(op, _target(place).name).ingredients
    except OpforgeError:  # no source, no compiler
        return ""
    assert op.folder is not None
    own = {k: v for k, v in parts.items() if k.startswith(("source", "header"))}
    own["search"] = str(_SEARCH)
    own["record"] = hashlib.sha256((op.folder / "op.py").read_bytes()).hexdigest()
    return hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()[:16]


def _target(place: str) -> Target:
    """The build that a search at a place runs."""
    return Place(place, mode="cover").target


def _read(path: Path, place: str) -> Stored:
    one = _json(path).get(place)
    if not isinstance(one, dict):
        return Stored()
    try:
        recipes = [recipe.from_json(r) for r in one["cases"]]
        return Stored(recipes, str(one["sources"]), float(one["seconds"]))
    except (KeyError, TypeError, ValueError):
        return Stored()  # another version: search again


def _json(path: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        data = json.loads(path.read_text())
        if isinstance(data, dict):
            return data
    return {}


def _in_folder(op: Op) -> Path:
    assert op.folder is not None
    return op.folder / FILE


def _beside_cache(op: Op) -> Path | None:
    with contextlib.suppress(CacheError):
        where = hashlib.sha256(str(op.folder).encode(errors="surrogateescape")).hexdigest()[:12]
        return cache.root() / "cases" / f"{op.name}-{where}.json"
    return None


def missing(op: Op, place: str) -> str:
    """The reason why no search is possible here, or ""."""
    target = _target(place)
    if not target.sources(op):
        return f"it has no {target.language} source"
    try:
        planned = plan(op, target.name)
    except ToolchainError as error:
        return str(error)
    if cache.lookup(planned.entry) is None and not settings.jit_enabled():
        return f"{planned.library} is not built, and OPFORGE_JIT=0 forbids it"
    return ""
