# SPDX-License-Identifier: Apache-2.0
"""Groups rows, selects those with a valid time, and compares implementations."""

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
    """Group items by key, in their order."""
    found: dict[Key, list[Item]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


def styles(results: Results) -> dict[str, int]:
    """A number for each implementation, for its colour and marker. opforge comes first."""
    first = [OURS, "eager", "torch.compile"]
    names = {r.implementation for r in results.rows}
    others = sorted(names - set(first))
    return {n: i for i, n in enumerate([*first, *others]) if n in names}


def believed(row: Row) -> bool:
    """Whether a row has a valid time, which may be drawn and compared."""
    return not row.error and row.us is not None and math.isfinite(row.us) and row.us > 0


def share(row: Row) -> float | None:
    """The share of the ceiling, or None if the row has no valid time."""
    return row.share if believed(row) else None


@dataclass(frozen=True)
class Contest:
    """One workload: opforge against the fastest other implementation."""

    ours: Row
    other: Row | None

    @property
    def ratio(self) -> float | None:
        """The other's time divided by opforge's. Above 1, opforge is faster."""
        if not believed(self.ours) or self.other is None:
            return None
        return (self.other.us or math.nan) / (self.ours.us or math.nan)

    @property
    def outcome(self) -> str | None:
        """Whether opforge is faster or slower, or within the noise if the intervals overlap."""
        ratio = self.ratio
        if ratio is None or self.other is None:
            return None
        ours, other = _interval(self.ours), _interval(self.other)
        if ours[0] <= other[1] and other[0] <= ours[1]:
            return UNDECIDED
        return FASTER if ratio > 1 else SLOWER


def contests(results: Results) -> list[Contest]:
    """All workloads with a row of opforge that moves at least one byte."""
    found = []
    for rows in results.workloads().values():
        if OURS in rows and (rows[OURS].error or rows[OURS].us is not None):
            found.append(Contest(rows[OURS], best_other(r for r in rows.values() if believed(r))))
    return found


def _interval(row: Row) -> tuple[float, float]:
    us = row.us or math.nan
    return (us if row.low is None else row.low, us if row.high is None else row.high)
