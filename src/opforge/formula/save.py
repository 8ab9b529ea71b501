# SPDX-License-Identifier: Apache-2.0
"""What is kept for the backward: the whole tensors, among inputs and outputs, that it reads.

What is small (per row, per column, single numbers) is kept where it is needed, and what a sum over
a row tells is found again, from rows that are read anyway.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from opforge.errors import NewError
from opforge.formula.graph import Graph, Input, Output, Value, arguments_of, cone
from opforge.formula.group import kind_of
from opforge.terminal.words import did_you_mean


@dataclass(frozen=True)
class Choice:
    """One way: the names of whole tensors that are kept, and how many operations are left."""

    kept: tuple[str, ...]
    operations: int

    @property
    def bytes_read(self) -> int:
        """Bytes that the backward reads of what is kept, for each element of 16 bits."""
        return 2 * len(self.kept)


def choices(graph: Graph) -> list[Choice]:
    """All ways, the best first: the fewest tensors, then the fewest operations."""
    whole = [t for t in _tensors(graph) if kind_of(t.value, graph.frame) == "whole"]
    found: list[Choice] = []
    for count in range(len(whole) + 1):
        for some in itertools.combinations(whole, count):
            names = tuple(t.name for t in some)
            if any(set(c.kept) <= set(names) for c in found):
                continue
            leaves = given(graph, names)
            values = cone([g.value for g in graph.gradients], leaves)
            if all(a in leaves or a.op == "number" for a in arguments_of(values)):
                found.append(Choice(names, sum(bool(v.args) and v not in leaves for v in values)))
    return sorted(found, key=lambda c: (len(c.kept), c.operations))


def choose(graph: Graph, wanted: str | None) -> Choice:
    """The best way, or the one that keeps what ``--save`` names."""
    found = choices(graph)
    if wanted is None:
        return found[0]
    names = tuple(n.strip() for n in wanted.split(",") if n.strip())
    for choice in found:
        if set(choice.kept) == set(names):
            return choice
    ways = [",".join(c.kept) or "nothing" for c in found]
    raise NewError(
        f"--save {wanted}: the backward cannot be computed from that; it can from "
        f"{' or '.join(ways)}{did_you_mean(wanted, ways)}"
    )


def given(graph: Graph, kept: tuple[str, ...]) -> dict[Value, str]:
    """Value -> tensor for all that the backward may read."""
    found = {i.value: i.name for i in graph.incoming}
    for tensor in _tensors(graph):
        if (
            tensor.name in kept
            or kind_of(tensor.value, graph.frame) not in ("whole", "part")
            or (kind_of(tensor.value, graph.frame) == "part" and isinstance(tensor, Input))
        ):
            found.setdefault(tensor.value, tensor.name)
    return found


def _tensors(graph: Graph) -> list[Input | Output]:
    """Outputs first: the next layer usually keeps them anyway."""
    made = [o for o in graph.outputs if o.value.op not in ("input", "constant")]
    return [*made, *graph.tensors]
