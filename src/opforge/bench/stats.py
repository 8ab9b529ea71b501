# SPDX-License-Identifier: Apache-2.0
"""The median of a few times, how sure it is, and when to stop measuring."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Summary:
    """A median with its 95% confidence interval."""

    median: float
    low: float
    high: float
    spread: float  # interquartile range over the median

    @property
    def uncertainty(self) -> float:
        """Half the interval's width, relative to the median."""
        return (self.high - self.low) / 2 / self.median if self.median else 0.0


def summarise(times: Sequence[float]) -> Summary:
    """The interval lies between two of the ordered times and assumes nothing about them.

    The number of times below the true median is binomial with p = 1/2.
    """
    ordered, n = sorted(times), len(times)
    skip, tail = 0, 0.0
    while skip < (n - 1) // 2:
        tail += math.comb(n, skip) / 2**n
        if tail > 0.025:
            break
        skip += 1
    skip = max(skip - 1, 0)
    median = statistics.median(ordered)
    quarter = n // 4
    spread = (ordered[n - 1 - quarter] - ordered[quarter]) / median if median else 0.0
    return Summary(median, ordered[skip], ordered[n - 1 - skip], spread)


@dataclass(frozen=True)
class Patience:
    """When there are turns enough."""

    least: int = 9  # turns; below six there is no such interval
    uncertainty: float = 0.005  # of every median, relative
    seconds: float = 2.0  # at most, per workload

    def enough(self, times: dict[str, list[float]], elapsed: float) -> bool:
        """Whether every median is certain enough, or time is up."""
        turns = min((len(t) for t in times.values()), default=0)
        if elapsed > 10 * self.seconds and turns >= 3:  # huge: what there is has to do
            return True
        if turns < self.least:
            return False
        if elapsed > self.seconds:
            return True
        return all(summarise(t).uncertainty <= self.uncertainty for t in times.values())
