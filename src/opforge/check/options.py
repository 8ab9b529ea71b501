# SPDX-License-Identifier: Apache-2.0
"""The options of a check: places, rows, and how thorough."""

from __future__ import annotations

from dataclasses import dataclass

from opforge.build.targets import has_kernels
from opforge.check import row as rows
from opforge.check.place import CPU, CUDA, PLACES, default_places
from opforge.errors import OpforgeError
from opforge.op import Op


@dataclass(frozen=True)
class Options:
    """What to run. It applies to every op of a check."""

    on: tuple[str, ...] = ()
    full: bool = False
    sanitize: bool = False
    seed: int = 0
    only: tuple[str, ...] = ()
    seconds: float = 0.0  # limit for one row; 0 for the default
    jobs: int = 1  # rows that run at a time
    stop: bool = False  # start no more rows after a failure

    def __post_init__(self) -> None:
        for place in self.on:
            if place not in PLACES:
                raise OpforgeError(f"unknown place {place!r}; use some of {','.join(PLACES)}")
        if not 0 <= self.seed < 2**31:
            raise OpforgeError(f"seed {self.seed} must be from 0 to 2^31 - 1")
        if self.jobs < 1:
            raise OpforgeError(f"jobs {self.jobs} must be at least 1")

    @property
    def places(self) -> tuple[str, ...]:
        """The places to check: those asked for, or else the defaults of this machine."""
        return tuple(dict.fromkeys(self.on)) or tuple(default_places())

    def todo(self, op: Op) -> list[tuple[str, str]]:
        """All pairs of a row and a place that the row's letters name, sorted by place.

        If no places were asked for, an op without CUDA source only has CPU rows. Rows that need a
        GPU are listed even if there is none, so that the report shows them as not run.
        """
        chosen = rows.find(list(self.only))
        if not self.on and not has_kernels(op, CUDA.target.name):
            return [(r.name, CPU.name) for r in chosen if rows.applies_at(r, CPU.name)]
        todo = [(r.name, p) for p in self.places for r in chosen if rows.applies_at(r, p)]
        if not self.on and CUDA.name not in self.places:
            todo += [(r.name, CUDA.name) for r in chosen if r.letters == CUDA.letter]
        return todo
