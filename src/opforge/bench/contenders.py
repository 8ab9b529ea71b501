# SPDX-License-Identifier: Apache-2.0
"""The contenders: the op, its reference in eager mode and compiled, and the record's peers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from opforge.bench.clock import Clock
from opforge.bench.inputs import InputSet
from opforge.bench.results import OURS
from opforge.build import targets
from opforge.errors import OpforgeError
from opforge.op import Op, as_tuple, sum_of_bytes
from opforge.truth import cases

EAGER, COMPILED = "eager", "torch.compile"
Function = Callable[..., Any]


def functions(
    op: Op, wanted: Sequence[str] | None, device: str
) -> dict[str, Function | Exception | None]:
    """All contenders by name: a function, an error text, or None if it is not installed.

    ``wanted`` names those to time besides the op itself; None means all. On a GPU, an op without
    a CUDA kernel is not a contender, but its peers still are.
    """
    assert op.reference is not None
    chosen = [n for n in (EAGER, COMPILED, *op.peers) if wanted is None or n in wanted]
    found: dict[str, Function | Exception | None] = {}
    target = targets.for_device(device)
    if target is not None and (target.falls_back or targets.has_kernels(op, target.name)):
        found[OURS] = op
    for name in chosen:
        if name == EAGER:
            found[name] = op.reference
        elif name == COMPILED:
            found[name] = torch.compile(op.reference, dynamic=False)
        else:
            try:
                found[name] = op.peers[name]()
            except ImportError:
                found[name] = None
            except Exception as error:  # an error of a peer is not an error of the op
                found[name] = error
    return found


def check_names(ops: Sequence[Op], wanted: Sequence[str] | None) -> None:
    """Raise for a name that is not a peer of any of the ops."""
    known = dict.fromkeys([EAGER, COMPILED, *(name for op in ops for name in op.peers)])
    for name in wanted or ():
        if name not in known:
            names = ", ".join(op.name for op in ops)
            raise OpforgeError(f"{names}: unknown peer {name!r}; choose from {', '.join(known)}")


class Forward:
    """Forward calls of a function on every input set, without gradients."""

    def __init__(self, function: Function, sets: Sequence[InputSet]) -> None:
        self._function, self._sets = function, sets
        self.calls = [self._call(s) for s in sets]

    def _call(self, inputs: InputSet) -> Callable[[], tuple[torch.Tensor, ...]]:
        def call() -> tuple[torch.Tensor, ...]:
            with torch.no_grad():
                return as_tuple(self._function(*inputs.case))

        return call

    def prepare(self) -> None:
        """Do nothing before a turn."""

    def memory(self, clock: Clock) -> tuple[int | None, int | None]:
        """Peak bytes beyond inputs and outputs, and None for saved bytes."""
        found: list[Any] = []
        peak = clock.peak_memory(lambda: found.extend(self.calls[0]()))
        return (None if peak is None else peak - sum_of_bytes(found)), None


class Backward:
    """Backward calls of a function on every input set. Its forward runs just before a turn."""

    def __init__(
        self,
        function: Function,
        sets: Sequence[InputSet],
        gradients: Sequence[InputSet],
        wanted: Sequence[bool],
    ) -> None:
        self._function, self._sets, self._gradients = function, sets, gradients
        self._wanted = wanted
        self._graphs: list[tuple[list[torch.Tensor], list[torch.Tensor]] | None] = [None] * len(
            sets
        )
        self.calls = [self._call(i) for i in range(len(sets))]

    def prepare(self) -> None:
        """Run all forwards again, because the inputs have changed."""
        for i in range(len(self._sets)):
            self._forward(i)

    def _forward(self, i: int) -> None:
        leaves = cases.as_leaves(self._sets[i].case)
        outputs = as_tuple(self._function(*leaves))
        chosen = [o for o, w in zip(outputs, self._wanted, strict=True) if w]
        self._graphs[i] = chosen, cases.differentiable(leaves)

    def _call(self, i: int) -> Callable[[], tuple[torch.Tensor | None, ...]]:
        gradients = self._gradients[i].case

        def call() -> tuple[torch.Tensor | None, ...]:
            graph, self._graphs[i] = self._graphs[i], None
            assert graph is not None
            return torch.autograd.grad(*graph, gradients, allow_unused=True)

        return call

    def memory(self, clock: Clock) -> tuple[int | None, int | None]:
        """Peak bytes of the backward beyond its results, and the bytes that the forward saved."""
        kept = clock.held_memory(lambda: self._forward(0))
        graph = self._graphs[0]
        assert graph is not None
        kept = None if kept is None else kept - sum_of_bytes(graph[0])
        found: list[Any] = []
        peak = clock.peak_memory(lambda: found.extend(self.calls[0]()))
        results = {g.untyped_storage()._cdata: g for g in found if g is not None}
        mine = {g.untyped_storage()._cdata for s in self._gradients for g in s.case}
        new = sum_of_bytes(g for key, g in results.items() if key not in mine)
        return (None if peak is None else peak - new), kept
