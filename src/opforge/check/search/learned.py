# SPDX-License-Identifier: Apache-2.0
"""What comparisons teach: the constants that sizes and options are compared with.

A comparison is of interest until it has come out less, equal and greater. Its constant is related
to a size by what stood on the other side: the size itself, or something that grows with it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from opforge.check.search.recipe import Recipe
from opforge.coverage.recorder import Compare

_LARGEST = 1 << 26
_EVERY = 7  # less, equal, greater
_PAIRS = 6


@dataclass
class Site:
    """A comparison in the source: how it came out so far, and what was on both sides in a case."""

    outcomes: int = 0
    constant: bool = False
    seen: dict[tuple[float, float], Recipe] = field(default_factory=dict)
    version: int = 0  # grows with what is seen

    def note(self, pair: tuple[float, float], recipe: Recipe) -> None:
        """Keep the first few pairs of operands; later, those that are closer to each other."""
        if pair in self.seen:
            return
        if len(self.seen) >= _PAIRS:
            furthest = max(self.seen, key=_distance)
            if _distance(pair) > 0.8 * _distance(furthest):
                return
            del self.seen[furthest]
        self.seen[pair] = recipe
        self.version += 1

    @property
    def is_open(self) -> bool:
        """Whether other sizes may make it come out in another way."""
        if self.constant:
            return self.outcomes != _EVERY
        return self.outcomes in (1, 2, 4)  # loops compare their counter with their end


@dataclass
class Learned:
    """All comparisons met so far."""

    sites: dict[str, Site] = field(default_factory=dict)

    def add(self, compares: Iterable[Compare], recipe: Recipe) -> None:
        """Note what one case compared."""
        for c in compares:
            site = self.sites.setdefault(c.where, Site(constant=c.kind in ("constant", "cases")))
            site.outcomes |= c.outcomes
            for pair in c.pairs[:2] if site.is_open else ():
                site.note(pair, recipe)

    def open(self) -> list[Site]:
        """Comparisons that have not come out in every way."""
        return [site for site in self.sites.values() if site.is_open]

    def beside(self, value: float) -> list[float]:
        """What an option of this value was compared with; a kernel may have rounded it."""
        found: dict[float, None] = {}
        for site in self.sites.values():
            for a, b in site.seen:
                for mine, other in ((a, b), (b, a)):
                    if mine != other and math.isclose(mine, value, rel_tol=1e-6):
                        found[other] = None
        return [x for x in found if math.isfinite(x)]


def sizes_for(pair: tuple[float, float], size: int) -> list[int]:
    """Sizes that may make the two sides of a comparison equal, just less and just greater.

    The size may be what is compared, or in proportion to it (a product, bytes, blocks), or be it
    but for a constant.
    """
    found: dict[int, None] = {}
    for goal, observed in (pair, pair[::-1]):
        if not (_plausible(goal) and math.isfinite(observed)):
            continue
        near = [int(goal), math.floor(size * goal / observed) if observed > 0 else int(goal)]
        near.append(math.floor(size + goal - observed))
        for step in (0, 1, -1):
            found.update(dict.fromkeys(x + step for x in near))
        found.update(dict.fromkeys(int(goal) * k for k in (2, 3)))
    return [n for n in found if 0 <= n <= _LARGEST and n != size]


def _distance(pair: tuple[float, float]) -> float:
    a, b = pair
    if not (math.isfinite(a) and math.isfinite(b)):
        return math.inf
    return abs(a - b) / max(abs(a), abs(b), 1)


def _plausible(x: float) -> bool:
    return math.isfinite(x) and 1 < x <= _LARGEST and x == math.floor(x)
