# SPDX-License-Identifier: Apache-2.0
"""Which rows belong together, which of them may be drawn, and who won."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from opforge.bench.results import OURS, Results, Row, best_other

Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")

FASTER, UNDECIDED, SLOWER = "faster", "within noise", "slower"


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Items by key, in the order in which they come."""
    found: dict[Key, list[Item]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


def styles(results: Results) -> dict[str, int]:
    """A number for each implementation: its colour and marker. Ours is the first, others last."""
    first = [OURS, "eager", "torch.compile"]
    names = {r.implementation for r in results.rows}
    others = sorted(names - set(first))
    return {n: i for i, n in enumerate([*first, *others]) if n in names}


def believed(row: Row) -> bool:
    """Whether a row has a time that may be drawn and compared."""
    return not row.error and row.us is not None and math.isfinite(row.us) and row.us > 0


def share(row: Row) -> float | None:
    """The share of the ceiling, of rows that are believed."""
    return row.share if believed(row) else None


@dataclass(frozen=True)
class Contest:
    """One workload: ours against the fastest other."""

    ours: Row
    other: Row | None

    @property
    def ratio(self) -> float | None:
        """The other's time over ours: above 1 ours is faster."""
        if not believed(self.ours) or self.other is None:
            return None
        return (self.other.us or math.nan) / (self.ours.us or math.nan)

    @property
    def outcome(self) -> str | None:
        """Who won; nobody where the confidence intervals of the two times meet."""
        ratio = self.ratio
        if ratio is None or self.other is None:
            return None
        ours, other = _interval(self.ours), _interval(self.other)
        if ours[0] <= other[1] and other[0] <= ours[1]:
            return UNDECIDED
        return FASTER if ratio > 1 else SLOWER


def contests(results: Results) -> list[Contest]:
    """Every workload that has a row of ours; where no byte moves there is nothing to win."""
    found = []
    for rows in results.workloads().values():
        if OURS in rows and (rows[OURS].error or rows[OURS].us is not None):
            found.append(Contest(rows[OURS], best_other(r for r in rows.values() if believed(r))))
    return found


def _interval(row: Row) -> tuple[float, float]:
    us = row.us or math.nan
    return (us if row.low is None else row.low, us if row.high is None else row.high)
