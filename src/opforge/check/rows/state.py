# SPDX-License-Identifier: Apache-2.0
"""Rows about state: what a call leaves behind, other threads, memory, printed output."""

from __future__ import annotations

import contextlib
import ctypes
import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import torch

from opforge.check.row import Fault, NotApplicable, Trial, row
from opforge.check.situation import Situation
from opforge.truth import compare, inputs

_GROWTH = 8 << 20  # bytes that a process may grow by for unrelated reasons
_THREADS = (1, 2, 3, 5, 8)
_ELEMENTS = 300_000  # so many that a CPU kernel divides them among threads


@row(
    76,
    "calls-apart",
    "c s g",
    "An op that keeps a buffer between calls overwrites the result of the last one.",
)
def calls_apart(t: Trial) -> None:
    """Results do not change while other cases run, and the same calls give them again later."""
    found = [s for s in t.own(*t.dtypes) if s.elements]
    first: list[tuple[Situation, list[torch.Tensor], list[torch.Tensor]]] = []
    for s in found:
        results = t.trying(s).results()
        first.append((s, results, [r.clone() for r in results]))
        _halved(s).results()
    for s, results, copies in first:
        for a, b in zip(results, copies, strict=True):
            compare.check_same_bits(a, b, "a later call changed the result of an earlier one")
        for a, b in zip(t.trying(s).results(), copies, strict=True):
            compare.check_same_bits(a, b, "after other calls, the same call differs bitwise")


def _halved(s: Situation) -> Situation:
    """The same call with other values."""
    for name in s.floats:
        s = s.change(name, inputs.scaled, 0.5)
    return s


@row(
    76,
    "steady-memory",
    "c s g",
    "A tensor that is never freed makes a long training run out of memory.",
)
def steady_memory(t: Trial) -> None:
    """2,000 calls, forward and backward: memory does not grow, and nothing is printed."""
    count = 200 if t.hurried else 2000
    s = t.smallest(t.dtypes[0], 64)
    gradient = s.has_gradient()
    _return_free_memory()
    for _ in range(count // 10):
        s.results(gradient)
    with _printed() as said:
        before = _memory(t.place.device)
        for _ in range(count):
            s.results(gradient)
        grown = _memory(t.place.device) - before
    if said:
        raise Fault(f"the op writes to standard output or standard error: {said[0][:200]!r}")
    if grown > _GROWTH:
        raise Fault(
            f"{count} calls leak {grown / 2**20:.0f} MiB of memory, {grown // count} bytes per "
            "call: something that a call allocates is never freed"
        )
    t.note = f"{count} calls"


def _return_free_memory() -> None:
    """Return free memory to the system. A leak that fits into it would not grow the process."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it
    if trim is not None:
        trim(0)


def _memory(device: str) -> int:
    """The memory that the process holds, in bytes."""
    if device == "cuda":
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@contextlib.contextmanager
def _printed() -> Iterator[list[str]]:
    """Collect what is written to standard output and standard error meanwhile, also by C++."""
    said: list[str] = []
    with tempfile.TemporaryFile() as file:
        kept = [os.dup(fd) for fd in (1, 2)]
        try:
            for fd in (1, 2):
                os.dup2(file.fileno(), fd)
            yield said
        finally:
            for fd, copy in zip((1, 2), kept, strict=True):
                os.dup2(copy, fd)
                os.close(copy)
        file.seek(0)
        if text := file.read().decode(errors="replace").strip():
            said.append(text)


@row(
    76,
    "two-threads",
    "c s g",
    "Data loaders and servers call an op from several threads. A shared buffer mixes up their "
    "results.",
)
def two_threads(t: Trial) -> None:
    """Two threads run at once, each with its own case, and get the same results as alone."""
    count = 5 if t.place.simulated else 40
    found = [s for s in t.own(t.dtypes[0]) if s.elements]
    one = max(found, key=lambda s: s.elements)
    chosen = [one, _halved(one)]
    right = [s.results() for s in chosen]
    failures: list[Exception] = []
    barrier = threading.Barrier(len(chosen))

    def run(s: Situation, expected: list[torch.Tensor]) -> None:
        try:
            barrier.wait()
            for _ in range(count):
                for a, b in zip(s.results(), expected, strict=True):
                    compare.check_same_bits(
                        a, b, "with another thread running, the call differs bitwise"
                    )
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=pair) for pair in zip(chosen, right, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    t.trying(one)
    if failures:
        raise failures[0]
    t.note = f"2 threads, {count} calls each"


@row(
    77,
    "thread-counts",
    "c",
    "Machines have different numbers of cores, and a kernel divides its work differently on each.",
)
def thread_counts(t: Trial) -> None:
    """1, 2, 3, 5 and 8 threads: right, and the same bits where the record promises them."""
    before = torch.get_num_threads()
    differ = False
    try:
        for base in t.kinds(t.dtypes[0]):
            s = _grown(t, base)
            if s is None:
                continue
            first: list[torch.Tensor] = []
            for count in _THREADS:
                torch.set_num_threads(count)
                if count in (1, 3):  # identical results need no second truth
                    _right(t.trying(s))
                results = t.trying(s).results()
                first = first or results
                same = [compare.same_bits(a, b).all() for a, b in zip(first, results, strict=True)]
                if all(map(bool, same)):
                    continue
                if t.op.same_bits:
                    for a, b in zip(first, results, strict=True):
                        compare.check_same_bits(
                            a, b, f"the result of {count} threads differs bitwise from that of 1"
                        )
                differ = True
                _right(s)
    finally:
        torch.set_num_threads(before)
    if t.last is None:
        raise NotApplicable("no case can be made large enough to be divided among threads")
    t.note = f"{', '.join(map(str, _THREADS))} threads"
    if differ:
        t.note += "; the bits depend on the number of threads"


def _right(s: Situation) -> None:
    try:
        s.both()
    except AssertionError:
        s.last = ""  # one call does not reproduce it: its lines do not set the number of threads
        raise


def _grown(t: Trial, base: Situation) -> Situation | None:
    """``base`` with so many rows that they are worth dividing among threads."""
    most = max(base.tensors.values(), key=lambda x: x.numel())
    if not most.numel():
        return None
    for chosen in dict.fromkeys(n for n in most.shape if n != 1):
        others = most.numel() // chosen
        s = t.resized(base, chosen, max(_ELEMENTS // others, chosen), chosen)
        if s is not None:
            return s
    return None
