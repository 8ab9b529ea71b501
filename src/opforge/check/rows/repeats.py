# SPDX-License-Identifier: Apache-2.0
"""Rows that repeat a call, and the detectors for faults that repeating may not show."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import torch

from opforge.check import sanitizer
from opforge.check.row import Fault, NotApplicable, NotRun, Trial, row
from opforge.check.search.recipe import exercise
from opforge.check.situation import Situation
from opforge.discover import where
from opforge.errors import ToolchainError
from opforge.truth import compare

_RACED = 1 << 18  # elements; a quick check looks for races in cases up to this size


@row(
    41,
    "deterministic",
    "c s g",
    "In deterministic mode, results must be bitwise identical, or the op must raise torch's own "
    "error.",
    star=True,
)
def deterministic(t: Trial) -> None:
    """100 runs under torch.use_deterministic_algorithms."""
    count = 20 if t.hurried else 100
    chosen = [_chosen(t, dtype) for dtype in (t.dtypes if t.full else t.dtypes[:1])]
    with _deterministic_mode():
        try:
            for s, gradient in chosen:
                _repeat(t, s, gradient, count)
            t.note = f"{count} runs"
        except RuntimeError as error:
            if "does not have a deterministic implementation" not in str(error):
                raise
            t.note = "refused with torch's own error"


@contextlib.contextmanager
def _deterministic_mode() -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


@row(
    42,
    "repeats",
    "c s g",
    "A race shows only now and then, so a call is repeated up to a thousand times (in the "
    "simulator, with other orders of threads).",
    star=True,
)
def repeats(t: Trial) -> None:
    """Outputs and gradients are bitwise identical every time."""
    count = 1000 if t.full else 100
    for dtype in t.dtypes[:1] if t.hurried else t.dtypes:
        _repeat(t, *_chosen(t, dtype), count)
    t.note = f"{count} {'orders of threads' if t.place.simulated else 'runs'}"


def _chosen(t: Trial, dtype: torch.dtype) -> tuple[Situation, bool]:
    """The case to repeat, and whether it has a gradient; many threads take long in the simulator.

    This is found out before any mode is set, because it runs the reference.
    """
    s = t.smallest(dtype, 64) if t.place.simulated else t.largest(dtype)
    return s, s.has_gradient()


def _repeat(t: Trial, s: Situation, gradient: bool, count: int) -> None:
    t.trying(s)
    first = s.results(gradient)
    for number in range(count):
        if t.place.simulated:
            s.place = replace(t.place, seed=number)
        for a, b in zip(first, s.results(gradient), strict=True):
            compare.check_same_bits(a, b, f"run {number + 2} differs bitwise from the first")


def _race_found(t: Trial) -> None:
    """Look for races in the cases that a search found; several launches, say, need a large one."""
    try:
        t.recipes()
    except ToolchainError:  # there is nothing to search with, as the row coverage reports
        return
    for s, recipe in t.found():
        if t.full or s.elements <= _RACED:
            s.place = replace(s.place, mode="race")
            exercise(t.trying(s), recipe)


@row(
    43,
    "sanitizer",
    "s g",
    "Races, reads of unwritten memory and accesses out of bounds usually still give right results.",
    star=True,
)
def sanitizer_row(t: Trial) -> None:
    """compute-sanitizer's four tools on a GPU; the simulator's own detectors elsewhere."""
    if t.place.kind.on_gpu:
        if not t.sanitize:
            raise NotRun("takes minutes; --sanitize runs it")
        if t.op.composed is not None:  # the tools do not see all that cuBLAS writes
            raise NotApplicable("it is composed of other ops; the tools run on those")
        t.note = sanitizer.run(t.op, t.seed)
        return
    for s in t.own():
        s.place = replace(t.place, mode="race")
        s.both()
    _race_found(t)
    t.note = "races, unwritten and misaligned memory"
    if t.full:
        command = [sys.executable, "-m", "opforge", "sim", where(t.op), "--asan"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=540)
        except subprocess.TimeoutExpired:
            t.note += "; AddressSanitizer took more than 540 s and was left out"
            return
        if done.returncode == 1:
            raise Fault(done.stdout.strip())
        ran = done.returncode == 0
        t.note += ", out-of-bounds" if ran else f"; without AddressSanitizer: {done.stderr.strip()}"
