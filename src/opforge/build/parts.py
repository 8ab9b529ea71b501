# SPDX-License-Identifier: Apache-2.0
"""The parts of an op: the libraries that its sources are compiled into, and what goes into each.

Most ops have one part, the base. A record may ask for more (see ``Build``): one per dtype, so that
a first call compiles one dtype only, and one per source that is compiled on demand. The base then
finds functions of other parts through a loader, see ``host/registration.h``.

Only what opforge builds for users is split. Libraries for checks hold everything, and so do those
that other build systems make.
"""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass
from pathlib import Path

import torch

from opforge.build.targets import Target
from opforge.errors import RecordError
from opforge.op import Op

BASE = ""  # the name of the part that registers the op with torch
# By torch's dtypes: what core/types.h calls them, in the order of its enum.
DTYPES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16", torch.float64: "f64"}
_UNIT = re.compile(r"^\s*OPFORGE_UNIT\(\s*(\w+)\s*,", re.MULTILINE)


@dataclass(frozen=True)
class Part:
    """One library. ``dtype`` is set in a part for one dtype; ``units`` are those it defines."""

    name: str
    sources: tuple[Path, ...]
    dtype: str = ""
    units: tuple[str, ...] = ()


@dataclass(frozen=True)
class Parts:
    """All parts of an op for a target, the base first."""

    all: tuple[Part, ...]
    dtypes: tuple[str, ...]  # those with a part each; none if the base has all kernels
    units: dict[str, str]  # unit -> the part it is in

    def find(self, name: str) -> Part:
        """The part of a name."""
        return next(p for p in self.all if p.name == name)

    @property
    def with_kernels(self) -> list[str]:
        """The names of the parts that have kernels; the base of an op by dtype has none."""
        return [p.name for p in self.all if p.name != BASE or not self.dtypes]

    def for_dtype(self, dtype: torch.dtype) -> list[str]:
        """The names of the parts that a call in a dtype needs."""
        known = DTYPES.get(dtype, "")
        return [BASE, known] if known in self.dtypes else [BASE]


def parts_of(op: Op, goal: Target) -> Parts:
    """The parts that an op is divided into for a target."""
    assert op.folder is not None
    sources = goal.sources(op)
    named = [p for p in op.build.on_demand if fnmatch.fnmatch(p, goal.pattern)]
    lazy = [s for s in sources if _matches(s.relative_to(op.folder), named)]
    if named and sources and not lazy:
        raise RecordError(f"{op.name} has no source {' or '.join(named)} to compile on demand")
    units = {source: _units_in(op, source) for source in lazy}
    if not goal.for_users:
        return whole(op, goal)
    rest = tuple(s for s in sources if s not in units)
    dtypes = _dtypes(op) if goal.kind in op.build.by_dtype else ()
    found = [Part(BASE, () if dtypes else rest)]
    found += [Part(dtype, rest, dtype) for dtype in dtypes]
    where: dict[str, str] = {}
    for source, names in units.items():
        name = "-".join(source.relative_to(op.folder).with_suffix("").parts)
        found.append(Part(name, (source,), units=names))
        where |= dict.fromkeys(names, name)
    _check_names(op, [part.name for part in found], [u for names in units.values() for u in names])
    return Parts(tuple(found), dtypes, where)


def whole(op: Op, goal: Target, dtype: torch.dtype | None = None) -> Parts:
    """One part with everything. With a dtype, what is compiled by dtype is there for it alone."""
    sources = goal.sources(op)
    units = tuple(u for s in sources for u in _UNIT.findall(s.read_text(errors="replace")))
    only = DTYPES.get(dtype, "") if dtype and goal.kind in op.build.by_dtype else ""
    return Parts((Part(BASE, sources, only, units),), (), dict.fromkeys(units, BASE))


def _check_names(op: Op, parts: list[str], units: list[str]) -> None:
    for what, names in (("parts", parts), ("units", units)):
        for name in {n for n in names if names.count(n) > 1}:
            raise RecordError(f"{op.name} would have two {what} called {name}; rename a source")


def _matches(path: Path, patterns: list[str]) -> bool:
    return any(fnmatch.fnmatch(str(path), pattern) for pattern in patterns)


def _units_in(op: Op, source: Path) -> tuple[str, ...]:
    names = tuple(_UNIT.findall(source.read_text(errors="replace")))
    if not names:
        raise RecordError(
            f"{source} is compiled on demand, but has no line OPFORGE_UNIT(<name>, <function>)"
        )
    return names


def _dtypes(op: Op) -> tuple[str, ...]:
    if unknown := [d for d in op.dtypes if d not in DTYPES]:
        known = ", ".join(str(d).removeprefix("torch.") for d in DTYPES)
        raise RecordError(
            f"the record of {op.name} asks for a library per dtype, but {unknown[0]} cannot "
            f"have one; only {known} can"
        )
    for schema in op.kernels:
        first = next((arg.name for arg in schema.args if arg.type == "Tensor"), "")
        if not first or first in op.own_dtypes or first in op.statistics:
            found = f"begins with {first}, whose dtype may differ" if first else "has none"
            raise RecordError(
                f"the record of {op.name} asks for a library per dtype, chosen by the first "
                f"required Tensor argument, but {schema.name} {found}"
            )
    return tuple(dict.fromkeys(DTYPES[d] for d in op.dtypes))
