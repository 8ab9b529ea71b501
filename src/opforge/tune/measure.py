# SPDX-License-Identifier: Apache-2.0
"""Times the kernels that can make a product, in turns.

Products are found by calling the op: each of its libraries writes down what it makes. Then a table
with one line makes it choose a kernel, and the whole call is timed with each. First all tiles are
compared, then the orders of the best two.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from opforge.bench import shapes
from opforge.bench.clock import Clock, ClockError
from opforge.bench.inputs import DeviceMake
from opforge.bench.stats import Patience, summarise
from opforge.build import load
from opforge.build.targets import CUDA
from opforge.op import Op, as_tuple
from opforge.truth import cases
from opforge.tune.table import Choice, Product, line, recorded

ORDERS = [(8, "rows"), (8, "columns"), (4, "rows"), (16, "rows"), (16, "columns")]
_PATIENCE = Patience(least=7, uncertainty=0.004, seconds=0.6)
_CALLS = 3  # of a turn
USUAL = None  # what the rule of thumb takes


@dataclass(frozen=True)
class Tuned:
    """What was measured for a product: seconds of the call, by choice."""

    product: Product
    direction: str
    times: dict[Choice | None, float]

    @property
    def best(self) -> Choice:
        """The fastest choice."""
        return min((c for c in self.times if c is not None), key=lambda c: self.times[c])

    @property
    def gain(self) -> float:
        """How many times as long the call takes without a table."""
        return self.times[USUAL] / self.times[self.best]


class _Calls:
    """The forward or the backward of an op on some arguments. A backward has its own forward."""

    def __init__(self, op: Op, case: tuple[Any, ...], forward: bool) -> None:
        self._op, self._case, self._forward = op, case, forward
        self._graph: list[tuple[list[torch.Tensor], list[torch.Tensor]]] = []
        self._gradients: list[torch.Tensor] = []

    def prepare(self) -> None:
        """What comes before a turn."""
        if self._forward:
            return
        self._graph = []
        for _ in range(_CALLS):
            leaves = cases.as_leaves(self._case)
            outputs = [o for o in as_tuple(self._op(*leaves)) if o.requires_grad]
            self._graph.append((outputs, cases.differentiable(leaves)))
        if not self._gradients:
            self._gradients = [torch.randn_like(o) for o in self._graph[0][0]]

    def __call__(self) -> tuple[Any, ...]:
        if self._forward:
            with torch.no_grad():
                return as_tuple(self._op(*self._case))
        outputs, leaves = self._graph.pop()
        return torch.autograd.grad(outputs, leaves, self._gradients, allow_unused=True)


def tune(
    op: Op,
    clock: Clock,
    sizes: Sequence[shapes.Shape],
    dtypes: Sequence[torch.dtype],
    say: Callable[[str], None],
) -> Iterator[Tuned]:
    """Measure all products that the forward and the backward make at these shapes."""
    seen: set[Product] = set()
    for dtype in dtypes:
        for shape in sizes:
            for case, direction in _cases(op, dtype, clock.device, shape):
                shapes.check(op, case, shape)
                calls = _Calls(op, case, direction == "forward")
                for product, tiles in _products(op, calls).items():
                    if product in seen:
                        continue
                    seen.add(product)
                    say(f"{op.name} {direction} {product}")
                    times = _best_of(op, clock, calls, product, tiles)
                    if times:
                        yield Tuned(product, direction, times)
            torch.cuda.empty_cache()


def _cases(
    op: Op, dtype: torch.dtype, device: str, shape: shapes.Shape
) -> Iterator[tuple[tuple[Any, ...], str]]:
    """The arguments of each variant, forward and then backward."""
    made = {
        direction: shapes.arguments(op, DeviceMake(dtype, device, direction == "backward"), shape)
        for direction in (("forward", "backward") if op.backward else ("forward",))
    }
    for variant in made["forward"]:
        for direction, variants in made.items():
            yield variants[variant], direction


def _products(op: Op, calls: _Calls) -> dict[Product, list[str]]:
    calls.prepare()
    calls()  # loads the libraries, and what they compile on demand
    calls.prepare()
    load.record_products(op, CUDA.name, True)
    calls()
    return recorded(load.record_products(op, CUDA.name, False))


def _best_of(
    op: Op, clock: Clock, calls: _Calls, product: Product, tiles: Sequence[str]
) -> dict[Choice | None, float]:
    times = _times(op, clock, calls, product, [USUAL, *(Choice(tile) for tile in tiles)])
    ranked = sorted((c for c in times if c is not None), key=lambda c: times[c])
    orders = [Choice(c.tile, *order) for c in ranked[:2] for order in ORDERS[1:]]
    # Again with the best so far, because clocks change as a GPU gets warm.
    return _times(op, clock, calls, product, [USUAL, *ranked[:2], *orders]) if ranked else {}


def _times(
    op: Op, clock: Clock, calls: _Calls, product: Product, choices: Sequence[Choice | None]
) -> dict[Choice | None, float]:
    found: dict[Choice | None, list[float]] = {choice: [] for choice in choices}
    slow: set[Choice | None] = set()
    started = time.monotonic()
    clock.begin()
    try:
        while True:
            for choice in choices:
                if choice in slow:
                    continue
                load.choose(op, CUDA.name, line(product, choice) if choice else "")
                turn = clock.turn(lambda: None, calls.prepare, [calls] * _CALLS, False)
                found[choice].append(turn.seconds)
            least = min(min(t) for t in found.values())
            slow |= {c for c, t in found.items() if c is not USUAL and min(t) > 1.3 * least}
            known = {str(c): t[1:] for c, t in found.items() if c not in slow}
            if _PATIENCE.enough(known, time.monotonic() - started):
                break
    except ClockError:
        return {}
    finally:
        load.choose(op, CUDA.name, "")
    return {c: summarise(t[1:] or t).median for c, t in found.items()}
