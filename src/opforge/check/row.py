# SPDX-License-Identifier: Apache-2.0
"""The rows of the scoreboard: each a named check with a reason, run where its letters say.

Letters: ``c`` the CPU kernel, ``s`` the CUDA kernels in the simulator, ``g`` a GPU. A row is a
function that is given a :class:`Trial` and raises when the op fails it.
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
from opforge.check.place import LETTERS, Place
from opforge.check.situation import Situation, TooLarge
from opforge.errors import OpforgeError, RecordError
from opforge.op import Op
from opforge.terminal.words import did_you_mean
from opforge.truth import compare, inputs

if TYPE_CHECKING:
    from opforge.check.search.recipe import Recipe


class NotRun(Exception):
    """A row that applies to the op could not be run here; the text says why."""


class NotApplicable(Exception):
    """A row has no meaning for this op; the text says why."""


class Fault(AssertionError):
    """What a row found wrong, in words."""


@dataclass(frozen=True)
class Row:
    """One row: ``number`` is that of the scoreboard, 0 for the rows beside it."""

    number: int
    name: str
    star: bool
    letters: str
    reason: str
    run: Callable[[Trial], None]
    alone: bool = False  # it measures time, or takes memory that others would lack

    @property
    def label(self) -> str:
        """Number, star and name, as tables show them."""
        return f"{self.number or ''}{'★' if self.star else ''} {self.name}".strip()


@dataclass
class Trial:
    """An op at a place, for one row: what rows draw their situations from."""

    op: Op
    place: Place
    seed: int = 0
    full: bool = False
    sanitize: bool = False
    last: Situation | None = None  # what was being tried when a row failed
    note: str = ""  # something a passed row should say: how many runs, what was left out
    errors: dict[str, list[compare.Errors]] = field(
        default_factory=lambda: {"forward": [], "backward": []}
    )
    coverage: dict[str, Any] = field(default_factory=dict)  # how much code was reached

    @property
    def every_dtype(self) -> tuple[torch.dtype, ...]:
        """The dtypes to make cases in: the floating point ones, if the op has any."""
        return tuple(d for d in self.op.dtypes if d.is_floating_point) or self.op.dtypes

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """The dtypes to try: every one, or the first and bfloat16 in a quick check."""
        every = self.every_dtype
        return every if self.full else tuple(d for d in every if d in (every[0], torch.bfloat16))

    def own(self, *dtypes: torch.dtype) -> Iterator[Situation]:
        """The record's cases, in these dtypes or in all to be tried."""
        for one in dtypes or self.dtypes:
            for s in situation.own(self.op, self.place, one, self.seed):
                yield self.trying(s)

    def kinds(self, dtype: torch.dtype | None = None) -> Iterator[Situation]:
        """One case of each kind, contiguous: by the ranks of tensors and the other arguments.

        These are what rows resize and change; a quick check takes three of them, two where they
        are simulated.
        """
        most = 2 if self.place.name == "sim" else 3
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
        """Cases found by what code they reach; a first call may search for them."""
        from opforge.check.search import stored  # which needs the places that rows run at

        return stored.found(self.op, self.place.name, self.seed, self.full, last_words)

    def found(self) -> Iterator[tuple[Situation, Recipe]]:
        """The situations of :meth:`recipes` that the record still takes."""
        for recipe in self.recipes():
            try:
                s = recipe.situation(self.op, self.place, self.seed)
            except RecordError:  # a case that it has no more
                continue
            if s.makes_sense():
                yield self.trying(s), recipe

    def trying(self, s: Situation) -> Situation:
        """Remember ``s`` as what is being tried, and collect its errors."""
        self.last = s
        s.errors = self.errors
        s.quick = not self.full
        return s

    def resized(self, base: Situation, chosen: int, size: int, rest: int) -> Situation | None:
        """``base`` with one of its sizes replaced, and the others cut short where the op lets us.

        All of them, else those that can be: labels, say, need as many classes as there were. None
        where the op does not take the size however the others are.
        """
        shorter = {n: rest for n in base.sizes() if n > rest and n != chosen}
        for others in (lambda: shorter, lambda: self._cut(base, shorter), dict):
            with contextlib.suppress(TooLarge):
                s = base.resize({**others(), chosen: size})
                if s.makes_sense():
                    return self.trying(s)
        return None

    def _cut(self, base: Situation, shorter: dict[int, int]) -> dict[int, int]:
        """As many of the sizes to be cut short as the op takes together, as short as it takes them.

        Small ones first: a head, say, may be no shorter than the part of it that is rotated.
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
        """Outputs and gradients near the truth, if the op takes these values."""
        if s.makes_sense():
            self.trying(s).both()

    def smallest(self, dtype: torch.dtype, least: int) -> Situation:
        """The smallest case of at least so many elements: for what is run very often."""
        found = sorted(self.own(dtype), key=lambda s: s.elements)
        return self.trying(next((s for s in found if s.elements >= least), found[-1]))

    def largest(self, dtype: torch.dtype | None = None) -> Situation:
        """The largest case, if possible one without an empty tensor: of nothing nothing is read."""

        def size(s: Situation) -> tuple[bool, int]:
            return all(x.numel() for x in s.tensors.values()), s.elements

        return self.trying(max(self.own(dtype or self.dtypes[0]), key=size))


def last_words(text: str) -> None:
    """Say what is about to run: a process that ends in it is quoted so."""
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
    """Make a function a row of the scoreboard."""

    def keep(function: Callable[[Trial], None]) -> Callable[[Trial], None]:
        _rows.append(Row(number, name, star, letters.replace(" ", ""), reason, function, alone))
        return function

    return keep


@functools.cache
def all_rows() -> tuple[Row, ...]:
    """Every row in the order of the scoreboard; what searches find often has its own, before.

    How exact an op is comes last, when it is known whether it is right.
    """
    from opforge.check import rows

    for module in pkgutil.iter_modules(rows.__path__):
        importlib.import_module(f"{rows.__name__}.{module.name}")
    last = ("found-cases", "random", "accuracy")
    order = {name: i for i, name in enumerate(last, 1)}
    return tuple(sorted(_rows, key=lambda r: (order.get(r.name, 0), r.number)))


def find(names: list[str]) -> list[Row]:
    """The rows of these names or numbers; all if there are none."""
    if not names:
        return list(all_rows())
    found = []
    for name in names:
        matching = [r for r in all_rows() if name and name in (r.name, str(r.number or ""))]
        if not matching:
            known = ", ".join(f"{r.number or '-'} {r.name}" for r in all_rows())
            meant = did_you_mean(name, [r.name for r in all_rows()])
            raise OpforgeError(f"there is no row {name!r}; the rows are: {known}{meant}")
        found += matching
    return list(dict.fromkeys(found))


def applies_at(row: Row, place: str) -> bool:
    """Whether a row is run at a place."""
    return LETTERS[place] in row.letters
