# SPDX-License-Identifier: Apache-2.0
"""What to check: places, rows, and how much of each."""

from __future__ import annotations

from dataclasses import dataclass

from opforge.build.targets import has_sources
from opforge.check import row as rows
from opforge.check.place import PLACES, default_places
from opforge.errors import OpforgeError
from opforge.op import Op


@dataclass(frozen=True)
class Options:
    """What to run: the same for every op."""

    on: tuple[str, ...] = ()
    full: bool = False
    sanitize: bool = False
    seed: int = 0
    only: tuple[str, ...] = ()
    seconds: float = 0.0  # that a row may take; 0 for the default
    jobs: int = 1  # rows that run at a time
    stop: bool = False  # begin no row after one that failed

    def __post_init__(self) -> None:
        for place in self.on:
            if place not in PLACES:
                raise OpforgeError(f"there is no place {place!r}; use some of {','.join(PLACES)}")
        if not 0 <= self.seed < 2**31:
            raise OpforgeError(f"seed {self.seed} must be from 0 to 2^31 - 1")
        if self.jobs < 1:
            raise OpforgeError(f"jobs {self.jobs} must be at least 1")

    @property
    def places(self) -> tuple[str, ...]:
        """Where to check: as asked, else where this machine can."""
        return tuple(dict.fromkeys(self.on)) or tuple(default_places())

    def todo(self, op: Op) -> list[tuple[str, str]]:
        """Every row at every place its letters name, place by place.

        Unless places are asked for: an op without CUDA source has no rows but the CPU's, and rows
        that need a GPU are among them without one, too, to be told as not run.
        """
        chosen = rows.find(list(self.only))
        if not self.on and not has_sources(op, "cuda") and op.composed is None:
            return [(r.name, "cpu") for r in chosen if rows.applies_at(r, "cpu")]
        todo = [(r.name, p) for p in self.places for r in chosen if rows.applies_at(r, p)]
        if not self.on:
            todo += [
                (r.name, "cuda") for r in chosen if r.letters == "g" and "cuda" not in self.places
            ]
        return todo
