# SPDX-License-Identifier: Apache-2.0
"""The rows of the check: named tests, each with a reason and the places where it runs.

Its letters name the places: ``c`` is the CPU kernel, ``s`` the CUDA kernels in the simulator, ``g``
a GPU. A row is a function that takes a :class:`Trial` and raises if the op fails.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import pkgutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from opforge.check import situation
from opforge.check.place import PLACES, Place
from opforge.check.situation import Situation, TooLarge
from opforge.errors import OpforgeError, RecordError
from opforge.op import Op
from opforge.terminal.words import did_you_mean
from opforge.truth import compare, inputs

if TYPE_CHECKING:
    from opforge.check.search.recipe import Recipe


class NotRun(Exception):
    """A row applies to the op but cannot run here; the text says why."""


class NotApplicable(Exception):
    """A row does not apply to this op; the text says why."""


class Fault(AssertionError):
    """A row found a fault; the text describes it."""


@dataclass(frozen=True)
class Row:
    """One row. ``number`` is its number in docs/scores.md, 0 if it has none."""

    number: int
    name: str
    star: bool
    letters: str
    reason: str
    run: Callable[[Trial], None]
    alone: bool = False  # it measures time, or takes memory that other rows would lack

    @property
    def label(self) -> str:
        """Number, star and name, as reports show them."""
        return f"{self.number or ''}{'★' if self.star else ''} {self.name}".strip()


@dataclass
class Trial:
    """An op at a place, given to one row. Rows take their situations from it."""

    op: Op
    place: Place
    seed: int = 0
    full: bool = False
    sanitize: bool = False
    last: Situation | None = None  # the situation that was running when a row failed
    note: str = ""  # remark of a passed row: how many runs, what was left out
    errors: dict[str, list[compare.Errors]] = field(
        default_factory=lambda: {"forward": [], "backward": []}
    )
    coverage: dict[str, Any] = field(default_factory=dict)  # the share of code that was reached

    @property
    def hurried(self) -> bool:
        """Whether to try less: a quick check in the simulator, where everything takes long."""
        return self.place.simulated and not self.full

    @property
    def every_dtype(self) -> tuple[torch.dtype, ...]:
        """All dtypes to make cases in: the floating point ones if the op takes any."""
        return tuple(d for d in self.op.dtypes if d.is_floating_point) or self.op.dtypes

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """The dtypes to try: all, or in a quick check the first one and bfloat16."""
        every = self.every_dtype
        return every if self.full else tuple(d for d in every if d in (every[0], torch.bfloat16))

    def own(self, *dtypes: torch.dtype) -> Iterator[Situation]:
        """The record's cases in these dtypes, or else in all dtypes to try."""
        for one in dtypes or self.dtypes:
            for s in situation.own(self.op, self.place, one, self.seed):
                yield self.trying(s)

    def kinds(self, dtype: torch.dtype | None = None) -> Iterator[Situation]:
        """One contiguous case of each kind. Ranks of tensors and other arguments make the kind.

        Rows resize and change these cases. A quick check takes three of them, or two in the
        simulator.
        """
        most = self.place.kind.kinds_of_cases
        for one in self.dtypes if dtype is None else (dtype,):
            found: dict[str, Situation] = {}
            for s in situation.own(self.op, self.place, one, self.seed):
                key = str(
                    [v.dim() if isinstance(v, torch.Tensor) else v for v in s.values.values()]
                )
                if key not in found or s.elements > found[key].elements:
                    found[key] = s
            best = sorted(found.values(), key=lambda s: -max(t.dim() for t in s.tensors.values()))
            for s in best if self.full else best[:: -(-len(best) // most)]:
                for name, tensor in s.tensors.items():
                    if not tensor.is_contiguous() or tensor.storage_offset():
                        s = s.change(name, inputs.contiguous)
                yield self.trying(s)

    def recipes(self) -> list[Recipe]:
        """Cases that reach code which the record's do not. The first call may search for them."""
        from opforge.check.search import stored  # here, because it imports the places

        return stored.found(self.op, self.place.name, self.seed, self.full, last_words)

    def found(self) -> Iterator[tuple[Situation, Recipe]]:
        """The situations of :meth:`recipes` that the record still accepts."""
        for recipe in self.recipes():
            try:
                s = recipe.situation(self.op, self.place, self.seed)
            except RecordError:  # the record no longer has this case
                continue
            if s.makes_sense():
                yield self.trying(s), recipe

    def trying(self, s: Situation) -> Situation:
        """Note that ``s`` is running now, and collect its errors. Returns ``s``."""
        self.last = s
        s.errors = self.errors
        s.quick = not self.full
        return s

    def resized(self, base: Situation, chosen: int, size: int, rest: int) -> Situation | None:
        """``base`` with one of its sizes replaced and the others cut short as far as possible.

        Some sizes cannot be cut: labels, for example, need as many classes as before. Returns None
        if the op does not accept the new size with any of the others.
        """
        shorter = {n: rest for n in base.sizes() if n > rest and n != chosen}
        for others in (lambda: shorter, lambda: self._cut(base, shorter), dict):
            with contextlib.suppress(TooLarge):
                s = base.resize({**others(), chosen: size})
                if s.makes_sense():
                    return self.trying(s)
        return None

    def _cut(self, base: Situation, shorter: dict[int, int]) -> dict[int, int]:
        """The sizes of ``shorter`` that the op accepts together, as short as it accepts them.

        Small sizes come first: a head, for example, must not be shorter than its rotated part.
        """
        cut: dict[int, int] = {}
        for n in sorted(shorter):
            size = shorter[n]
            while size < n and not base.resize({**cut, n: size}).makes_sense():
                size *= 2
            if size < n:
                cut[n] = size
        return cut

    def demand(self, s: Situation) -> None:
        """Outputs and gradients must be near the truth, if the op accepts these values."""
        if s.makes_sense():
            self.trying(s).both()

    def smallest(self, dtype: torch.dtype, least: int) -> Situation:
        """The smallest case with at least ``least`` elements, for rows that run it very often."""
        found = sorted(self.own(dtype), key=lambda s: s.elements)
        return self.trying(next((s for s in found if s.elements >= least), found[-1]))

    def largest(self, dtype: torch.dtype | None = None) -> Situation:
        """The largest case, if possible one without an empty tensor, from which nothing is read."""

        def size(s: Situation) -> tuple[bool, int]:
            return all(x.numel() for x in s.tensors.values()), s.elements

        return self.trying(max(self.own(dtype or self.dtypes[0]), key=size))


def last_words(text: str) -> None:
    """Report what is about to run. If the process crashes, the failure quotes this text."""
    print(text, file=sys.stderr, flush=True)


_rows: list[Row] = []


def row(
    number: int,
    name: str,
    letters: str,
    reason: str,
    star: bool = False,
    alone: bool = False,
) -> Callable[[Callable[[Trial], None]], Callable[[Trial], None]]:
    """Register a function as a row of the check."""

    def keep(function: Callable[[Trial], None]) -> Callable[[Trial], None]:
        _rows.append(Row(number, name, star, letters.replace(" ", ""), reason, function, alone))
        return function

    return keep


@functools.cache
def all_rows() -> tuple[Row, ...]:
    """All rows in the order of reports.

    ``found-cases`` and ``random`` come late, because other rows often name the same fault.
    ``accuracy`` comes last, after all rows that test whether the op is right.
    """
    from opforge.check import rows

    for module in pkgutil.iter_modules(rows.__path__):
        importlib.import_module(f"{rows.__name__}.{module.name}")
    last = ("found-cases", "random", "accuracy")
    order = {name: i for i, name in enumerate(last, 1)}
    return tuple(sorted(_rows, key=lambda r: (order.get(r.name, 0), r.number)))


def find(names: list[str]) -> list[Row]:
    """The rows with these names or numbers. Without any, all rows."""
    if not names:
        return list(all_rows())
    found = []
    for name in names:
        matching = [r for r in all_rows() if name and name in (r.name, str(r.number or ""))]
        if not matching:
            known = ", ".join(f"{r.number or ''} {r.name}".strip() for r in all_rows())
            meant = did_you_mean(name, [r.name for r in all_rows()])
            raise OpforgeError(f"unknown row {name!r}; the rows are: {known}{meant}")
        found += matching
    return list(dict.fromkeys(found))


def applies_at(row: Row, place: str) -> bool:
    """Whether a row runs at a place."""
    return PLACES[place].letter in row.letters
