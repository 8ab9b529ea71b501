# SPDX-License-Identifier: Apache-2.0
"""A coverage-guided search: a case that reaches new code is kept and mutated further.

First come the record's cases in all dtypes, and every simple change to one case of each kind. Then
come sizes that the code compares with, and then random changes to kept cases. The seed determines
the order; time only determines where the search ends.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from opforge.check.place import Place
from opforge.check.search.learned import Learned
from opforge.check.search.mutate import Mutator
from opforge.check.search.recipe import Recipe, exercise
from opforge.errors import OpforgeError
from opforge.op import Op
from opforge.truth.coverage import lines, recorder

_SAMPLE = 1 << 15  # a case with more elements is a large one
_QUICK, _WORTH = (
    0.05,
    0.25,
)  # seconds that do not matter; share of time at which a faster case is kept too
_TURN = 40  # cases
_PATIENCE = 3000  # cases without anything new before the search ends
_LONG = 0.3  # seconds
_KEPT, _FAILED = 48, 8  # recipes, at most


Tell = Callable[[str], None]


@dataclass
class Kept:
    """A recipe that reached something new."""

    recipe: Recipe
    features: frozenset[str | int]
    seconds: float
    failed: bool = False


@dataclass
class Found:
    """The result of a search."""

    kept: list[Kept] = field(default_factory=list)
    blocks: recorder.Blocks = field(default_factory=dict)
    runs: int = 0
    seconds: float = 0.0

    @property
    def recipes(self) -> list[Recipe]:
        """A small set of recipes that reaches everything that was reached."""
        return [k.recipe for k in _fewest(self.kept)]


class Search:
    """Runs recipes of an op at a place, and records what they reach."""

    def __init__(self, op: Op, place: str, seed: int = 0, tell: Tell | None = None) -> None:
        self.op, self.seed = op, seed
        self._tell = tell  # gets what is about to run, because that may crash the process
        self.place = Place(place, mode="cover")
        self.found = Found()
        self.learned = Learned()
        self.mutator = Mutator(op, self.place, seed, self.learned)
        self._tried: set[Recipe] = set()
        self._fastest: dict[str | int, float] = {}  # what was reached -> the fewest seconds it took
        self._authors: dict[str, bool] = {}  # by file
        self._errors: set[str] = set()
        self._slow = self.place.kind.slow
        self._large = 0, 0.0  # elements of large cases, and the seconds they took

    def reached(self) -> lines.Reached:
        """The part of the author's source that was reached so far."""
        return lines.reached(self.op, self._libraries(), self.found.blocks)

    def _libraries(self) -> list[recorder.Watched]:
        return recorder.watched(self.op.name, self.place.target.name)

    def replay(self, recipes: Iterable[Recipe]) -> None:
        """Run recipes from earlier searches, without a time limit."""
        self._load()
        for recipe in recipes:
            self.run(recipe, proven=True)

    def explore(self, seconds: float) -> None:
        """Search for ``seconds``, or until nothing new has come up for long.

        The time is the processor time of this process, so that a search on a busy machine finds
        the same.
        """
        self._load()
        end, limit = time.process_time() + seconds, time.monotonic() + 5 * seconds
        since = 0
        for recipe in self._candidates():
            if time.process_time() > end or time.monotonic() > limit or since > _PATIENCE:
                break
            since = 0 if self.run(recipe) else since + 1

    def _load(self) -> None:
        """Run a first case, so that later ones are not charged for loading libraries."""
        self.run(Recipe(0, self.mutator.dtypes[0]))
        self._large = 0, 0.0

    def _candidates(self) -> Iterator[Recipe]:
        yield from self.mutator.seeds()
        ways = [self._plain(), self._learned(), self._random()]
        while True:  # take turns, because it depends on the op which of them finds something
            for way in ways:
                yield from itertools.islice(way, _TURN)

    def _plain(self) -> Iterator[Recipe]:
        """Every simple change to one case of each kind."""
        kinds = self.mutator.kinds()
        for recipe in kinds[:2]:
            yield from itertools.islice(self.mutator.long(recipe), 0, None, 4)
        for change in (self.mutator.neighbours, self.mutator.long):
            several = [change(recipe) for recipe in kinds]
            while several:
                for one in list(several):
                    found = list(itertools.islice(one, 5))
                    yield from found
                    if not found:
                        several.remove(one)

    def _learned(self) -> Iterator[Recipe]:
        """Sizes around the constants in comparisons, with the likely ones of all first."""
        done: set[tuple[str, int, int | None]] = set()
        while True:
            begun = len(done)
            for most in (6, None):
                for where, site in list(self.learned.sites.items()):
                    key = where, site.version // 2, most
                    if site.is_open and key not in done:
                        done.add(key)
                        yield from self.mutator.learned_sizes(site, most)
            if len(done) == begun:
                yield from itertools.islice(self._random(), 5)

    def _random(self) -> Iterator[Recipe]:
        """Random changes to kept recipes, more often to recent ones."""
        draw = self.mutator.random
        while True:
            fast = [k for k in self.found.kept if k.seconds < self._slow]
            if not fast:
                return
            yield self.mutator.any(draw.choice([*fast, *fast[-8:]]).recipe)

    def run(self, recipe: Recipe, proven: bool = False) -> bool:
        """Run a recipe and return whether it reached anything new. A ``proven`` one may be slow."""
        if recipe in self._tried:
            return False
        self._tried.add(recipe)
        try:
            elements = self.mutator.elements(recipe)
            slow = not proven and self._would_take(elements) > self._slow
            if elements > self.place.kind.most_elements or slow:
                return False
            s = recipe.apply(self.mutator.cases(recipe.dtype)[recipe.case].copy())
            if not s.makes_sense():
                return False
        except (RuntimeError, ValueError, LookupError, TypeError, AttributeError):
            return False  # this case does not allow the change
        if self._tell is not None:
            self._tell(f"{s.describe()}; {recipe.as_json()}")
        failed = refused = False
        begin = time.process_time()
        with recorder.recording() as seen:
            try:
                exercise(s, recipe)
            except (RuntimeError, TypeError, ValueError, OpforgeError) as error:
                failed = str(error) not in self._errors
                self._errors.add(str(error))
                refused = True
        took = time.process_time() - begin
        self.found.runs += 1
        self.found.seconds += took
        if elements > _SAMPLE:
            self._large = self._large[0] + elements, self._large[1] + took
        if refused and (recipe.dtypes or not failed):
            return False  # mixed dtypes may be rejected; one of each other error is enough
        compares = [c for c in seen.compares if self._is_authors(c)]
        self.learned.add(compares, recipe)
        features = self._features_of(seen, compares)
        # A quick case may reach the same as a slow one.
        new = {f for f in features if took < _WORTH * self._fastest.get(f, math.inf)}
        if not any(f not in self._fastest or self._fastest[f] > _QUICK for f in new) and not failed:
            return False
        self._fastest |= dict.fromkeys(new, took)
        for name, ran in seen.blocks.items():
            self.found.blocks.setdefault(name, set()).update(ran)
        self.found.kept.append(Kept(recipe, frozenset(features), took, failed))
        return True

    def _would_take(self, elements: int) -> float:
        """The expected seconds, estimated from earlier large cases."""
        known, took = self._large
        return elements * took / known if known else 0.0

    def _features_of(self, seen: recorder.Seen, compares: list[recorder.Compare]) -> set[str | int]:
        """What a case reached of the author's code: source lines, blocks, comparison outcomes."""
        found: set[str | int] = set()
        for one in self._libraries():
            for at in seen.blocks.get(one.name, ()):
                where = one.code.blocks.get(at)
                if where is not None and self._is_file(where):
                    found.add(where)
                    found.add(at)
        for c in compares:
            found |= {f"{c.where} = {bit}" for bit in (1, 2, 4) if c.outcomes & bit}
        return found

    def _is_authors(self, c: recorder.Compare) -> bool:
        return any(c.library == one.name for one in self._libraries()) and self._is_file(c.where)

    def _is_file(self, where: str) -> bool:
        """Whether a source location is in the author's code."""
        file = where.partition(":")[0]
        if file not in self._authors:
            self._authors[file] = lines.path_of(self.op, file) is not None
        return self._authors[file]


def _fewest(kept: list[Kept]) -> list[Kept]:
    """A small set of recipes that together reach what all do.

    Failed recipes are always in it, and quick ones come first. Source lines are worth any time.
    Outcomes of comparisons and instances of templates are not worth a slow recipe.
    """
    chosen = [k for k in kept if k.failed][:_FAILED]
    every = set().union(*(k.features for k in kept)) if kept else set()
    points = {f for f in every if isinstance(f, str) and " = " not in f}
    for wanted, slowest in ((points, math.inf), (every - points, _LONG)):
        missing = wanted - set().union(*(k.features for k in chosen))
        able = [k for k in kept if k.seconds < slowest]
        while missing and able and len(chosen) < _KEPT:
            best = max(able, key=lambda k: len(k.features & missing) / (0.02 + k.seconds))
            if not best.features & missing:
                break
            missing -= best.features
            chosen.append(best)
    return chosen
