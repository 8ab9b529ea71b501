# SPDX-License-Identifier: Apache-2.0
"""How long a turn takes: a number of calls, made back to back, on fresh inputs and cold caches.

On a GPU a sleep kernel goes first, so that the host has queued everything before the first call
starts: events around the calls then see the device alone. The inputs change after the sleep, in
the same stream, so a kernel that does not wait for its stream reads the old ones.

The clocks are taken when this module is imported, before any op is: an op that replaces them later
is found out, here and by a second clock.
"""

from __future__ import annotations

import functools
import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

Call = Callable[[], Any]

_now = time.perf_counter_ns
_other_now = time.clock_gettime_ns
_Event: Any = torch.cuda.Event
_NAMES = (
    "time.perf_counter_ns",
    "time.clock_gettime_ns",
    "torch.cuda.Event",
    "torch.cuda.Event.record",
    "torch.cuda.Event.elapsed_time",
    "torch.cuda.Event.synchronize",
    "torch.cuda.synchronize",
    "torch.cuda.current_stream",
    "torch.cuda._sleep",
)
_SLEEP, _MOST_SLEEP = 2e-3, 1.0  # seconds
_TRIES = 5  # turns to be taken again before clocks that disagree are not believed
_LEFTOVER = 200e-6  # seconds it may take to hear from the device that it is idle


@dataclass(frozen=True)
class Turn:
    """Seconds per call of one turn."""

    seconds: float
    host: float | None  # the host's share of making a call; None where the host does the work
    outputs: list[Any]
    leftover: float = 0.0  # seconds of work that went on after the stream was done


def _look_up(name: str) -> Any:
    module, *path = name.split(".")
    start: Any = {"time": time, "torch": torch}[module]
    return functools.reduce(lambda thing, part: getattr(thing, part, None), path, start)


_TRUSTED = {name: _look_up(name) for name in _NAMES}


def replaced() -> str:
    """The name of a clock that is not what it was; "" if all are."""
    return next((name for name in _NAMES if _look_up(name) is not _TRUSTED[name]), "")


class CpuClock:
    """The host's clock: calls return when they are done."""

    device = "cpu"
    method = (
        "host clock around one call on each of several input sets, changed just before; "
        "implementations take turns; median"
    )

    def __init__(self) -> None:
        self.cache_bytes = min(_last_level_cache(), 256 << 20)
        self._flusher = torch.ones(self.cache_bytes // 4)

    def turn(self, change: Call, prepare: Call, calls: Sequence[Call], keep: bool) -> Turn:
        """Change the inputs, prepare, then time the calls; their outputs are kept if asked for.

        Outputs that are not kept go back to the allocator at once, as in a loop: fresh pages for
        each would cost more than most ops.
        """
        for _ in range(_TRIES):
            turn = self._try(change, prepare, calls, keep)
            if turn is not None:
                return turn
        raise ClockError("two clocks disagree on how long its calls took")

    def _try(self, change: Call, prepare: Call, calls: Sequence[Call], keep: bool) -> Turn | None:
        """A turn; None where its clocks disagree, be it that a neighbour came between them."""
        change()
        prepare()
        self._flusher.add_(0.0)  # written, or a cache may keep what is older
        before, other = _now(), _other_now(time.CLOCK_MONOTONIC_RAW)
        outputs = []
        for call in calls:
            output = call()
            if keep:
                outputs.append(_copy(output))
        elapsed, other = _now() - before, _other_now(time.CLOCK_MONOTONIC_RAW) - other
        if not _agree(elapsed * 1e-9, other * 1e-9):
            return None
        return Turn(elapsed * 1e-9 / len(calls), None, outputs)

    # A time is not believed below this share of the limit, less what a call costs anyway: caches
    # that a flush misses, turbo clocks and neighbours make more of a difference than on a GPU.
    margin, slack_us = 0.4, 20.0

    def begin(self) -> None:
        """A new workload."""

    def sets_for(self, size: int) -> int:
        """Input sets for calls that move so many bytes: a turn of some ten milliseconds."""
        return min(max((100 << 20) // max(size, 1), 3), 16)

    def disagrees(self, prepare: Call, calls: Sequence[Call]) -> bool:
        """Two clocks have timed every turn already."""
        return False

    def peak_memory(self, call: Call) -> int | None:
        """Not counted on the CPU."""
        call()
        return None

    held_memory = peak_memory


class CudaClock:
    """Events on the device's own clock."""

    device = "cuda"
    method = (
        "sleep kernel, then inputs changed, caches flushed and CUDA events around one call on each "
        "of several input sets; implementations take turns; median"
    )

    def __init__(self) -> None:
        facts = torch.cuda.get_device_properties(torch.cuda.current_device())
        self.cache_bytes = int(facts.L2_cache_size)
        self._flusher = torch.ones(2 * self.cache_bytes // 4, device="cuda")
        self._cycles_per_second = self._calibrate()
        self.begin()

    def begin(self) -> None:
        """A new workload: as long a sleep as most need, longer ones as they turn out."""
        self._sleep = _SLEEP

    def _calibrate(self) -> float:
        """Cycles of the sleep kernel per second, by the device's clock."""
        cycles = 20_000_000
        for _ in range(2):
            start, end = _Event(enable_timing=True), _Event(enable_timing=True)
            start.record()
            torch.cuda._sleep(cycles)
            end.record()
            end.synchronize()
        return float(cycles / (start.elapsed_time(end) * 1e-3))

    def turn(self, change: Call, prepare: Call, calls: Sequence[Call], keep: bool) -> Turn:
        """Change the inputs, prepare, then time the calls; the host is far ahead meanwhile.

        Outputs are always kept until the turn is over, so that each lies in memory of its own:
        written to the same place, a small one would never leave the cache.
        """
        while True:
            turn, queued = self._try(change, prepare, calls, keep)
            # The sleep must outlast the queueing, or the device would wait for the host.
            if queued < 0.8 * self._sleep:
                # A first turn, which allocates, would make all others long. Little by little: the
                # others may need more.
                self._sleep = max(_SLEEP, min(self._sleep, max(3 * queued, 0.7 * self._sleep)))
                return turn
            if self._sleep >= _MOST_SLEEP:
                self.begin()  # the others need no such sleep
                raise ClockError("waits for the GPU: its calls cannot be queued ahead")
            self._sleep = min(max(2 * queued, 2 * self._sleep), _MOST_SLEEP)

    def _try(
        self, change: Call, prepare: Call, calls: Sequence[Call], keep: bool
    ) -> tuple[Turn, float]:
        start, end = _Event(enable_timing=True), _Event(enable_timing=True)
        torch.cuda.synchronize()
        began = _now()
        torch.cuda._sleep(int(self._sleep * self._cycles_per_second))
        change()
        prepare()
        self._flusher.sum()  # read, so that no line of the cache is left to be written back
        start.record()
        before = _now()
        outputs = [call() for call in calls]
        queued = _now()
        end.record()
        if keep:
            outputs[-1] = _copy(outputs[-1])
        end.synchronize()
        done = _now()
        torch.cuda.synchronize()
        leftover = max((_now() - done) * 1e-9 - _LEFTOVER, 0.0)
        elapsed = start.elapsed_time(end) * 1e-3
        if elapsed > 1.5 * (done - began) * 1e-9:
            raise ClockError("two clocks disagree on how long its calls took")
        count = len(calls)
        host = (queued - before) * 1e-9 / count
        return (
            Turn((elapsed + leftover) / count, host, outputs, leftover),
            (queued - began) * 1e-9,
        )

    margin, slack_us = 0.85, 2.0

    def sets_for(self, size: int) -> int:
        """Input sets for calls that move so many bytes: a turn of some 300 µs."""
        # No more than 16: a queue takes a thousand launches, and some ops make dozens each.
        return min(max(-(-1_200_000_000 // max(size, 1)), 4), 16)

    def disagrees(self, prepare: Call, calls: Sequence[Call]) -> bool:
        """Whether the device's clock sees much less of 20 ms of calls than the host's."""
        torch.cuda.synchronize()
        start, end = _Event(enable_timing=True), _Event(enable_timing=True)
        before = _now()
        start.record()
        while _now() - before < 20_000_000:
            prepare()
            for call in calls:
                call()
        end.record()
        end.synchronize()
        waited = (_now() - before) * 1e-9
        return bool(start.elapsed_time(end) * 1e-3 < 0.5 * waited)

    def peak_memory(self, call: Call) -> int | None:
        """Bytes that a call takes at its peak, its outputs included."""
        gc.collect()  # what goes meanwhile would be counted
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        return torch.cuda.max_memory_allocated() - before

    def held_memory(self, call: Call) -> int | None:
        """Bytes that are still taken when a call has returned."""
        gc.collect()
        before = torch.cuda.memory_allocated()
        call()
        return torch.cuda.memory_allocated() - before


class ClockError(Exception):
    """A time that cannot be taken, or not be believed."""


Clock = CpuClock | CudaClock
KINDS: dict[str, type[Clock]] = {"cpu": CpuClock, "cuda": CudaClock}


def make_clock(device: str) -> Clock:
    """The clock of a device."""
    return KINDS[device]()


def _copy(output: Any) -> list[Any]:
    """What a call gave, as it is right now: work may go on in a thread or another stream."""
    return [None if t is None else t.clone() for t in output]


def _agree(one: float, other: float) -> bool:
    """Two clocks on the same stretch; a millisecond between reading them is nothing."""
    return abs(one - other) <= 1e-3 + 0.05 * max(one, other)


def _last_level_cache() -> int:
    """Bytes of the largest cache that Linux tells of, or 32 MB."""
    sizes = [32 << 20]
    for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = file.read_text().strip()
        units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
        if text[:-1].isdecimal() and text[-1] in units:
            sizes.append(int(text[:-1]) * units[text[-1]])
    return max(sizes)
