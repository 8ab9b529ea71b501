# SPDX-License-Identifier: Apache-2.0
"""Times a turn: several calls in a row, on new inputs and with cold caches.

On a GPU, a sleep kernel runs first, so that the host has queued everything before the first call
starts. Events around the calls then measure the device alone. The inputs change after the sleep, in
the same stream. A kernel that does not wait for its stream therefore reads the old inputs.

The clock functions are saved when this module is imported, before any op is loaded. An op that
replaces them later is detected, here and by a second clock.
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
_TRIES = 5  # turns before clocks that disagree are an error
_LEFTOVER = 200e-6  # seconds that it may take until the host learns that the device is idle


@dataclass(frozen=True)
class Turn:
    """Seconds per call of one turn."""

    seconds: float
    host: float | None  # time of the host per call; None if the host does the work
    outputs: list[Any]
    leftover: float = 0.0  # seconds of work that went on after the stream was done


def _look_up(name: str) -> Any:
    module, *path = name.split(".")
    start: Any = {"time": time, "torch": torch}[module]
    return functools.reduce(lambda thing, part: getattr(thing, part, None), path, start)


_TRUSTED = {name: _look_up(name) for name in _NAMES}


def replaced() -> str:
    """The name of a clock function that has been replaced, or ""."""
    return next((name for name in _NAMES if _look_up(name) is not _TRUSTED[name]), "")


class CpuClock:
    """The clock for the CPU, where calls return when they are done."""

    device = "cpu"
    method = (
        "host clock around one call on each of several input sets, changed just before; "
        "implementations take turns; median"
    )

    def __init__(self) -> None:
        self.cache_bytes = min(_last_level_cache(), 256 << 20)
        self._flusher = torch.ones(self.cache_bytes // 4)

    def turn(self, change: Call, prepare: Call, calls: Sequence[Call], keep: bool) -> Turn:
        """Change the inputs, prepare, then time the calls. ``keep`` keeps their outputs.

        Otherwise an output is freed at once, as in a loop. New pages for each output would cost
        more than most ops.
        """
        for _ in range(_TRIES):
            turn = self._try(change, prepare, calls, keep)
            if turn is not None:
                return turn
        raise ClockError("two clocks disagree on how long its calls took")

    def _try(self, change: Call, prepare: Call, calls: Sequence[Call], keep: bool) -> Turn | None:
        """One turn, or None if its clocks disagree, for example because of another process."""
        change()
        prepare()
        self._flusher.add_(0.0)  # written, because a cache may keep older lines that are only read
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

    # A time below this share of the ceiling, minus the cost of a call, is rejected. The share is
    # lower than on a GPU because of caches that a flush misses, turbo clocks and other processes.
    margin, slack_us = 0.4, 20.0

    def begin(self) -> None:
        """Start a new workload."""

    def sets_for(self, size: int) -> int:
        """The number of input sets for calls of this size, so that a turn takes some 10 ms."""
        return min(max((100 << 20) // max(size, 1), 3), 16)

    def disagrees(self, prepare: Call, calls: Sequence[Call]) -> bool:
        """False, because two clocks have timed every turn already."""
        return False

    def peak_memory(self, call: Call) -> int | None:
        """None, because it is not measured on the CPU."""
        call()
        return None

    held_memory = peak_memory


class CudaClock:
    """The clock for a GPU: events, measured by the device."""

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
        """Start a new workload, with the usual sleep. It becomes longer if needed."""
        self._sleep = _SLEEP

    def _calibrate(self) -> float:
        """Cycles of the sleep kernel per second, measured by the device's clock."""
        cycles = 20_000_000
        for _ in range(2):
            start, end = _Event(enable_timing=True), _Event(enable_timing=True)
            start.record()
            torch.cuda._sleep(cycles)
            end.record()
            end.synchronize()
        return float(cycles / (start.elapsed_time(end) * 1e-3))

    def turn(self, change: Call, prepare: Call, calls: Sequence[Call], keep: bool) -> Turn:
        """Change the inputs, prepare, then time the calls, while the host is far ahead.

        Outputs are always kept until the end of the turn, so that each has its own memory. A small
        output that is written to the same place again would never leave the cache.
        """
        while True:
            turn, queued = self._try(change, prepare, calls, keep)
            # The sleep must outlast the queueing, or the device would wait for the host.
            if queued < 0.8 * self._sleep:
                # The first turn allocates. If its sleep counted, all others would be long. So the
                # sleep grows in steps.
                self._sleep = max(_SLEEP, min(self._sleep, max(3 * queued, 0.7 * self._sleep)))
                return turn
            if self._sleep >= _MOST_SLEEP:
                self.begin()  # other workloads do not need such a long sleep
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
        self._flusher.sum()  # only read, so that no cache line must be written back
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
        """The number of input sets for calls of this size, so that a turn takes some 300 µs."""
        # At most 16, because a queue takes a thousand launches, and some ops make dozens each.
        return min(max(-(-1_200_000_000 // max(size, 1)), 4), 16)

    def disagrees(self, prepare: Call, calls: Sequence[Call]) -> bool:
        """Whether the device's clock measures much less time than the host's for 20 ms of calls."""
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
        """Peak memory of a call in bytes, including its outputs."""
        gc.collect()  # or memory that is freed during the call would count
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        return torch.cuda.max_memory_allocated() - before

    def held_memory(self, call: Call) -> int | None:
        """Bytes that are still allocated after a call has returned."""
        gc.collect()
        before = torch.cuda.memory_allocated()
        call()
        return torch.cuda.memory_allocated() - before


class ClockError(Exception):
    """A time that cannot be measured, or cannot be trusted."""


Clock = CpuClock | CudaClock
KINDS: dict[str, type[Clock]] = {"cpu": CpuClock, "cuda": CudaClock}


def make_clock(device: str) -> Clock:
    """The clock for a device."""
    return KINDS[device]()


def _copy(output: Any) -> list[Any]:
    """Copy the outputs of a call as they are now. Hidden work may still change them later."""
    return [None if t is None else t.clone() for t in output]


def _agree(one: float, other: float) -> bool:
    """Whether two clocks agree on an interval, except for a millisecond between the readings."""
    return abs(one - other) <= 1e-3 + 0.05 * max(one, other)


def _last_level_cache() -> int:
    """Bytes of the largest cache that Linux reports, or 32 MB."""
    sizes = [32 << 20]
    for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = file.read_text().strip()
        units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
        if text[:-1].isdecimal() and text[-1] in units:
            sizes.append(int(text[:-1]) * units[text[-1]])
    return max(sizes)
