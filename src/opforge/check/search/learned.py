# SPDX-License-Identifier: Apache-2.0
"""Learns from the comparisons in the code which sizes and options to try.

A comparison is interesting until it has come out less, equal and greater. The other operand relates
its constant to a size: it is the size itself, or grows with it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from opforge.check.search.recipe import Recipe
from opforge.truth.coverage.recorder import Compare

_LARGEST = 1 << 26
_EVERY = 7  # less, equal, greater
_PAIRS = 6


@dataclass
class Site:
    """A comparison in the source: its outcomes so far, and pairs of operands with their cases."""

    outcomes: int = 0
    constant: bool = False
    seen: dict[tuple[float, float], Recipe] = field(default_factory=dict)
    version: int = 0  # increases with every new pair

    def note(self, pair: tuple[float, float], recipe: Recipe) -> None:
        """Keep the first few pairs of operands, and later the closest ones."""
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
        """Whether other sizes may give other outcomes."""
        if self.constant:
            return self.outcomes != _EVERY
        return self.outcomes in (
            1,
            2,
            4,
        )  # a loop, which compares its counter with its end, has two


@dataclass
class Learned:
    """All comparisons seen so far."""

    sites: dict[str, Site] = field(default_factory=dict)

    def add(self, compares: Iterable[Compare], recipe: Recipe) -> None:
        """Add the comparisons of one case."""
        for c in compares:
            site = self.sites.setdefault(c.where, Site(constant=c.kind in ("constant", "cases")))
            site.outcomes |= c.outcomes
            for pair in c.pairs[:2] if site.is_open else ():
                site.note(pair, recipe)

    def open(self) -> list[Site]:
        """Comparisons that have not had all outcomes."""
        return [site for site in self.sites.values() if site.is_open]

    def beside(self, value: float) -> list[float]:
        """Values that an option of this value was compared with. Kernels may have rounded it."""
        found: dict[float, None] = {}
        for site in self.sites.values():
            for a, b in site.seen:
                for mine, other in ((a, b), (b, a)):
                    if mine != other and math.isclose(mine, value, rel_tol=1e-6):
                        found[other] = None
        return [x for x in found if math.isfinite(x)]


def sizes_for(pair: tuple[float, float], size: int) -> list[int]:
    """Sizes that may make the operands of a comparison equal, just less and just greater.

    The compared value may be the size itself, be proportional to it (a product, bytes, blocks), or
    differ from it by a constant.
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
