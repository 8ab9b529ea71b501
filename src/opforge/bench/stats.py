# SPDX-License-Identifier: Apache-2.0
"""The median of a few times, its confidence interval, and when to stop measuring."""

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
    spread: float  # interquartile range divided by the median

    @property
    def uncertainty(self) -> float:
        """Half the width of the interval, relative to the median."""
        return (self.high - self.low) / 2 / self.median if self.median else 0.0


def summarise(times: Sequence[float]) -> Summary:
    """The median with an interval between two of the ordered times, for any distribution.

    The number of times below the true median has a binomial distribution with p = 1/2.
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
    """Decides when there are enough turns."""

    least: int = 9  # turns; fewer than six have no such interval
    uncertainty: float = 0.005  # relative, of every median
    seconds: float = 2.0  # limit per workload

    def enough(self, times: dict[str, list[float]], elapsed: float) -> bool:
        """Whether all medians are certain enough, or the time is up."""
        turns = min((len(t) for t in times.values()), default=0)
        if (
            elapsed > 10 * self.seconds and turns >= 3
        ):  # a huge workload: these turns must be enough
            return True
        if turns < self.least:
            return False
        if elapsed > self.seconds:
            return True
        return all(summarise(t).uncertainty <= self.uncertainty for t in times.values())
