# SPDX-License-Identifier: Apache-2.0
"""Times one workload: all contenders on the same inputs, in turns, with checks of the results.

A contender is only timed if its results are right. All inputs change before every turn, and each
input set is used once per turn, so that results cannot be remembered. The results of the last turn
are compared with the truth on every set, and the inputs must be unchanged.
"""

from __future__ import annotations

import contextlib
import gc
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from opforge.bench import clock as clocks
from opforge.bench import machine, shapes, stats
from opforge.bench.ceilings import PRODUCT, ceilings, limit
from opforge.bench.contenders import COMPILED, EAGER, Backward, Forward, functions
from opforge.bench.inputs import DeviceMake, InputSet, make_sets
from opforge.bench.results import OURS, Row
from opforge.errors import OpforgeError
from opforge.op import Cost, Op, as_tuple
from opforge.truth import cases, compare

Pass = Forward | Backward
Say = Callable[[str], None]
Alone = Callable[[], contextlib.AbstractContextManager[None]]


@dataclass(frozen=True)
class Workload:
    """One pass of an op at one shape and dtype."""

    op: Op
    direction: str
    variant: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def title(self) -> str:
        """A title for progress messages."""
        return f"{self.op.name} {self.direction} {'x'.join(map(str, self.shape))}"

    def row(self, implementation: str, run: str, **facts: Any) -> Row:
        """A row of results for one implementation of it."""
        dtype = str(self.dtype).removeprefix("torch.")
        workload = self.op.name, self.direction, self.variant, dtype, self.shape
        return Row(*workload, implementation, run, **facts)


@dataclass
class Contender:
    """One implementation, its times and its results."""

    row: Row
    calls: Pass
    times: list[float] = field(default_factory=list)
    hosts: list[float] = field(default_factory=list)
    late: int = 0  # number of turns after which work was still running
    outputs: list[Any] = field(default_factory=list)  # compared with the truth later


def measure(
    work: Workload,
    clock: clocks.Clock,
    wanted: Sequence[str] | None,
    patience: stats.Patience,
    run: str,
    say: Say = lambda text: None,
    alone: Alone = contextlib.nullcontext,
) -> list[Row]:
    """Measure a workload. Returns a row for each contender.

    A contender that fails, cheats or runs out of memory has an error in its row. Nothing else may
    run on the machine inside ``alone()``. The rest may run in parallel with other work.
    """
    try:
        return _Measurement(work, clock, wanted, patience, run, say, alone).rows()
    except torch.AcceleratorError as error:
        raise OpforgeError(
            f"{work.op.name} {work.direction}: the GPU reports an error, and this process cannot "
            f"use it any more: {_first_line(error)}. An out-of-bounds access may be the cause; "
            f"`opforge check {work.op.name} --sanitize` finds it"
        ) from None
    except Exception as error:  # for example of the reference; other shapes may work
        text = OUT_OF_MEMORY if _is_out_of_memory(error) else _first_line(error)
        return failed(work, clock.device, wanted, run, text)
    finally:
        gc.collect()  # calls are in reference cycles that hold gigabytes of tensors


def failed(
    work: Workload, device: str, wanted: Sequence[str] | None, run: str, error: str
) -> list[Row]:
    """Rows with an error for all contenders, if none could be timed."""
    found = functions(work.op, wanted, device)
    names = [name for name, function in found.items() if function is not None]
    return [work.row(name, run, error=error) for name in names]


OUT_OF_MEMORY = "out of memory"
_CAUGHT = (
    "cheats: right when it was checked, wrong when it was timed and its inputs had just changed"
)


class _Measurement:
    def __init__(
        self,
        work: Workload,
        clock: clocks.Clock,
        wanted: Sequence[str] | None,
        patience: stats.Patience,
        run: str,
        say: Say,
        alone: Alone,
    ) -> None:
        self._work, self._clock, self._run, self._say = work, clock, run, say
        self._patience, self._alone = patience, alone
        self._forward = work.direction == "forward"
        self._draw = random.Random()  # unseeded, so that values cannot be predicted
        torch._dynamo.reset()  # compile each workload separately, as opforge does
        clock.begin()
        op, make = work.op, DeviceMake(work.dtype, clock.device, not self._forward)

        def arguments(make: DeviceMake) -> tuple[Any, ...]:
            return shapes.arguments(op, make, work.shape)[work.variant]

        case = arguments(make)
        self._cost: Cost = op.cost(*case) if self._forward else op.backward_cost(*case)
        count = (
            clock.sets_for(self._cost.bytes) if self._cost.bytes else 1
        )  # without bytes it is only checked
        self._sets = make_sets(make, arguments, count)
        self._wanted = [] if self._forward else cases.differentiated(op, cases.as_leaves(case))
        self._gradients = [] if self._forward else self._make_gradients(case, count)
        self._functions = functions(op, wanted, clock.device)
        self._state: dict[str, Any] = {}
        self._ceilings = ceilings(op, self._cost, case, count, self._forward)

    def _make_gradients(self, case: tuple[Any, ...], count: int) -> list[InputSet]:
        op = self._work.op
        assert op.reference is not None
        outputs = as_tuple(op.reference(*case))
        like = [o for o, w in zip(outputs, self._wanted, strict=True) if w]
        make = DeviceMake(self._work.dtype, self._clock.device)
        promised = case[[a.name for a in op.forward.args].index(op.like)] if op.like else None

        def gradient(make: DeviceMake, output: torch.Tensor) -> torch.Tensor:
            found = make(*output.shape).to(output.dtype)
            # The layout that autograd would pass: for a channels-last image, channels last, as the
            # op returns it, even if its reference has another layout.
            if promised is not None and promised.shape == output.shape:
                output = promised
            if found.stride() == output.stride():
                return found
            return torch.empty_like(output, dtype=found.dtype).copy_(found)

        def gradients(make: DeviceMake) -> tuple[torch.Tensor, ...]:
            return tuple(gradient(make, o) for o in like)

        return make_sets(make, gradients, count)

    def rows(self) -> list[Row]:
        """Check the results, time the calls, and check the results again."""
        rows, contenders = [], []
        for name, function in self._functions.items():
            if function is None or (name == COMPILED and not self._cost.bytes):
                continue  # not installed, or nothing to compile
            row = self._work.row(name, self._run, bytes=self._cost.bytes)
            row.operations = self._cost.operations
            rows.append(row)
            if isinstance(function, Exception):
                row.error = _first_line(function)
            else:
                contenders.append(Contender(row, self._pass(function)))
        self._admit(contenders)
        if not self._cost.bytes:
            why = "its gradients are views" if any(self._wanted) else "it has no gradient"
            for row in rows:
                row.note = f"{why}: no byte moves, and nothing is timed"
            return rows
        if all(c.row.error for c in contenders):
            return rows
        with self._alone():
            limits = self._take_turns(contenders)
            self._doubt(contenders)
        self._judge(contenders, _CAUGHT)
        for contender in contenders:
            self._conclude(contender, limits)
        self._disbelieve(contenders)
        return rows

    def _pass(self, function: Callable[..., Any]) -> Pass:
        if self._forward:
            return Forward(function, self._sets)
        return Backward(function, self._sets, self._gradients, self._wanted)

    # --- before the turns: wrong kernels are not timed ---

    def _admit(self, contenders: list[Contender]) -> None:
        """Call each contender. If it raises or is wrong, it gets an error and is not timed."""
        same = self._draw.random()
        for c in contenders:
            self._say(c.row.implementation)

            def first_calls(c: Contender = c) -> None:
                for _ in range(2):  # the first call may compile
                    c.calls.prepare()
                    c.calls.calls[0]()
                c.row.extra_bytes, c.row.saved_bytes = c.calls.memory(self._clock)
                self._change(random.Random(same))
                c.calls.prepare()
                c.outputs = [c.calls.calls[0]()]

            self._guarded(c.row, first_calls)
            damage = self._damage()
            c.row.error = c.row.error or damage
        self._judge(contenders, "wrong")

    def _guarded(self, row: Row, action: Callable[[], None]) -> None:
        """Run an action. If it raises, write the error into the row."""
        try:
            action()
        except torch.AcceleratorError:
            raise
        except Exception as error:  # ops and peers may raise anything
            row.error = OUT_OF_MEMORY if _is_out_of_memory(error) else _first_line(error)
        if row.error and self._clock.device == "cuda":
            torch.cuda.empty_cache()

    def _change(self, draw: random.Random) -> None:
        for s in (*self._sets, *self._gradients):
            s.change(draw)

    def _judge(self, contenders: list[Contender], verdict: str) -> None:
        """Compare the outputs of all contenders with the truth, and free them."""
        judged = [c for c in contenders if not c.row.error]
        errors: dict[str, list[compare.Errors]] = {c.row.implementation: [] for c in judged}
        for i in range(max((len(c.outputs) for c in judged), default=0)):
            truth = self._truth(i)
            for c in judged:
                if c.row.error:
                    continue
                try:
                    truth.check(c.outputs[i], errors[c.row.implementation])
                except compare.Mismatch as error:
                    # The op must be as exact as opforge check demands. Others are timed if they are
                    # roughly right. Leaving out a faster one for a rounding would be unfair.
                    if c.row.implementation == OURS or not truth.roughly(c.outputs[i]):
                        c.row.error = f"{verdict}: {_first_line(error)}"
                    else:
                        c.row.note = f"less exact than opforge check allows: {_first_line(error)}"
        for c in judged:
            c.outputs = []
            total = compare.Error()
            for e in errors[c.row.implementation]:
                total.merge(e.ours)
            if total.count:
                c.row.ulp_max, c.row.ulp_rms = total.largest, total.rms

    def _truth(self, i: int) -> cases.Truth:
        case = self._sets[i].case
        if self._forward:
            return cases.true_outputs(self._work.op, case)
        leaves = cases.as_leaves(case)
        return cases.true_gradients(self._work.op, leaves, self._gradients[i].case)

    # --- the turns ---

    def _take_turns(self, ready: list[Contender]) -> dict[str, float]:
        """Run rounds in which each contender has a turn, until the medians are certain."""
        limit_times: dict[str, list[float]] = {name: [] for name in self._ceilings}
        started, first = time.monotonic(), 0
        while True:
            for name, ceiling in self._ceilings.items():
                self._say(name)
                turn = self._clock.turn(lambda: None, ceiling.prepare, ceiling.calls, False)
                limit_times[name].append(turn.seconds)
            for contender in (*ready[first:], *ready[:first]):  # the first contender changes
                if not contender.row.error:
                    self._one_turn(contender, lambda: self._change(self._draw))
            first = (first + 1) % max(len(ready), 1)
            self._state = machine.state(self._clock.device)
            times = {c.row.implementation: c.times[1:] for c in ready if not c.row.error}
            times |= {name: t[1:] for name, t in limit_times.items()}
            if self._patience.enough(times, time.monotonic() - started):
                break
        return {name: stats.summarise(t[1:]).median for name, t in limit_times.items()}

    def _one_turn(self, c: Contender, change: Callable[[], None], keep: bool = False) -> None:
        self._say(c.row.implementation)

        def turn() -> None:
            taken = self._clock.turn(change, c.calls.prepare, c.calls.calls, keep)
            c.late += taken.leftover > 0
            if keep:  # keeping outputs slows down a CPU, so such a turn does not count
                c.outputs = taken.outputs
                return
            c.times.append(taken.seconds)
            if taken.host is not None:
                c.hosts.append(taken.host)

        self._guarded(c.row, turn)

    # --- after the turns: can the times be trusted? ---

    def _doubt(self, contenders: list[Contender]) -> None:
        """Run one more turn on new inputs, and check the results and inputs afterwards."""
        same = self._draw.random()

        def change() -> None:
            self._change(self._draw)  # a contender that reads too early reads these values
            self._change(random.Random(same))

        self._damage()  # repair; a contender that damaged inputs before does it again
        for c in contenders:
            if c.row.error:
                continue
            self._one_turn(c, change, keep=True)
            damage = self._damage()
            c.row.error = c.row.error or damage or self._tampering(c)

    def _damage(self) -> str:
        """Describe what the last contender did to the inputs, and repair them."""
        damages = [d for s in (*self._sets, *self._gradients) for d in s.damages()]
        return f"cheats: it {damages[0]}" if damages else ""

    def _tampering(self, c: Contender) -> str:
        """The reason why the time of a contender cannot be trusted, or ""."""
        if name := clocks.replaced():
            return f"cheats: {name}, a clock, has been replaced"
        if c.late > len(c.times) / 2:
            return "cheats: its work goes on after its stream is done, on another stream or thread"
        if self._clock.disagrees(c.calls.prepare, c.calls.calls):
            return "cheats: two clocks disagree on how long its calls take"
        return ""

    def _conclude(self, c: Contender, limits: dict[str, float]) -> None:
        row = c.row
        if row.error:
            return
        found = stats.summarise(c.times[1:])
        row.us, row.low, row.high = (t * 1e6 for t in (found.median, found.low, found.high))
        row.spread, row.turns, row.calls = found.spread, len(c.times) - 1, len(c.calls.calls)
        if c.hosts:
            row.host_us = stats.summarise(c.hosts[1:]).median * 1e6
        row.ceilings = {name: t * 1e6 for name, t in limits.items()}
        row.ceiling = limit(row.ceilings)
        row.state = self._state

    def _disbelieve(self, contenders: list[Contender]) -> None:
        """Reject times that are shorter than moving the bytes takes, by more than noise.

        If eager PyTorch is as fast, the record counts too many bytes, which becomes a note.
        """
        early = [c.row for c in contenders if c.row.us and c.row.us < self._least_us(c.row)]
        wrong_record = any(row.implementation == EAGER for row in early)
        for row in early:
            text = (
                f"{row.us:.2f} µs, but moving the necessary bytes takes at least "
                f"{self._least_us(row):.2f} µs"
            )
            if wrong_record:
                row.note = f"the record counts too many bytes; give it bytes=…: {text}"
            else:
                row.error = f"impossible: {text}"

    def _least_us(self, row: Row) -> float:
        moving = [us for name, us in row.ceilings.items() if name != PRODUCT]
        floor = min(moving, default=0.0) * self._cost.floor / self._cost.bytes
        return self._clock.margin * floor - self._clock.slack_us


def _is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out. Only torch's GPU allocator raises a special exception."""
    texts = "can't allocate memory", "out of memory", "ALLOC_FAILED"
    return isinstance(error, torch.OutOfMemoryError) or any(t in str(error) for t in texts)


def _first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    kind = "" if isinstance(error, compare.Mismatch | clocks.ClockError) else type(error).__name__
    return ": ".join(part for part in (kind, text[0] if text else "") if part)[:300]
