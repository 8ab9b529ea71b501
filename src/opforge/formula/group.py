# SPDX-License-Identifier: Apache-2.0
"""Which kernels compute some results, and what each of them reads and writes.

A value is whole (an element for each), per column, per row, or one number. There are four kinds of
kernels:

  elements   whole results, from anything that is given
  rows       whole results and numbers per row, with sums over rows between
  columns    a sum over all rows for each column (or of numbers per row), and whole results with it
  values     results that are not whole, such as the root of a sum over everything

A sum over all rows ends a kernel: what depends on it is made by the next ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from opforge.formula.graph import COLUMNS, REDUCTIONS, Graph, Output, Unmapped, Value, cone

Kind = Literal["whole", "column", "row", "one", "part"]


@dataclass
class Result:
    """Something that a kernel writes: a value and the tensor it goes to."""

    value: Value
    tensor: str
    is_between: bool = False  # only read by the next kernels


@dataclass
class Kernel:
    """One kernel. ``given`` has what it reads: value -> tensor, sorted by kind."""

    kind: Literal["elements", "rows", "columns", "values", "fill"]
    results: list[Result]  # whole, or the one of "values" and "fill"
    of_row: list[Result] = field(default_factory=list)
    total: Result | None = None  # of "columns": a reduction
    given: dict[Kind, dict[Value, str]] = field(default_factory=dict)

    def leaves(self) -> dict[Value, str]:
        """All that it reads."""
        return {v: t for some in self.given.values() for v, t in some.items()}

    def targets(self) -> list[Value]:
        """The values that it computes; of a sum over rows, what is added up."""
        made = [r.value for r in (*self.results, *self.of_row)]
        return [*made, self.total.value.args[0]] if self.total else made


def kind_of(value: Value, frame: tuple[str, ...]) -> Kind:
    """How a value lies to the rows."""
    rows = frozenset(frame) - {COLUMNS}
    if value.axes == frozenset(frame):
        return "whole"
    if value.axes == rows:
        return "row"
    if not value.axes:
        return "one"
    return "column" if value.axes == {COLUMNS} else "part"


class Grouping:
    """The kernels for some results, from tensors that are there."""

    def __init__(self, graph: Graph, results: list[Output], given: Mapping[Value, str]) -> None:
        self._frame = graph.frame
        self._known = dict(given)  # grows by what kernels leave for the next ones
        self._names = {*given.values(), *(r.name for r in results)}
        self._between: set[Value] = set()
        self.kernels: list[Kernel] = []
        self._level: dict[Value, int] = {}
        values = cone([r.value for r in results], given)
        self._find_levels(values)
        self._refuse(values)
        barriers = [v for v in values if self._is_barrier(v)]
        self._direct = {r.value: r.name for r in reversed(results) if self._is_barrier(r.value)}
        rest = [r for r in results if self._direct.get(r.value) != r.name]
        for level in range(max(self._level.values(), default=0) + 1):
            here = [r for r in rest if self._level[r.value] == level]
            sums = [b for b in barriers if self._level[b] == level + 1]
            self._plan(here, sums)

    def kind(self, value: Value) -> Kind:
        """How a value lies to the rows."""
        return kind_of(value, self._frame)

    def _is_barrier(self, value: Value) -> bool:
        return value not in self._known and value.op in REDUCTIONS and COLUMNS not in value.reduced

    def _find_levels(self, values: list[Value]) -> None:
        """How many sums over all rows come before each value."""
        for value in values:
            below = [] if value in self._known else [self._level[a] for a in value.args]
            self._level[value] = max(below, default=0) + self._is_barrier(value)

    def _refuse(self, values: list[Value]) -> None:
        for value in values:
            if value in self._known or value.op not in REDUCTIONS:
                continue
            kind = self.kind(value)
            if COLUMNS in value.reduced and self.kind(value.args[0]) != "whole":
                what = "row" if self.kind(value.args[0]) == "column" else "part of the dims"
                raise Unmapped(f"a sum over the last dim of a {what} alone", value.line)
            if COLUMNS not in value.reduced and kind not in ("column", "one"):
                raise Unmapped("a sum over some of the leading dims, not all", value.line)
            if COLUMNS not in value.reduced and value.op != "sum":
                raise Unmapped(f"{value.op} over the leading dims", value.line)

    def _plan(self, results: list[Output], sums: list[Value]) -> None:
        wholes = [r for r in results if self._is_whole(r)]
        others = [r for r in results if not self._is_whole(r)]
        constant = [r for r in results if r.value.op == "constant"]
        wholes = [r for r in wholes if r not in constant]
        others = [r for r in others if r not in constant]
        for result in constant:
            self.kernels.append(Kernel("fill", [Result(result.value, result.name)]))
        adds_rows = self._adds_rows(
            [*(r.value for r in wholes), *(r.value for r in others), *(s.args[0] for s in sums)]
        )
        made = [Result(r.value, r.name) for r in wholes]
        if adds_rows:
            per_row = [r for r in others if self.kind(r.value) == "row"]
            others = [r for r in others if r not in per_row]
            of_row = [Result(r.value, r.name) for r in per_row]
            between = self._row_values([s.args[0] for s in sums])
            of_row += [self._leave(v) for v in between if v not in {r.value for r in of_row}]
            self._add(Kernel("rows", made, of_row))
            for left in of_row:
                if left.is_between:
                    self._known[left.value] = left.tensor
            made = []
        elif any(leaf in self._between for leaf in cone([r.value for r in made], self._known)):
            self._add(Kernel("rows", made))  # which reads the wider numbers of kernels before it
            made = []
        for total in sums:
            whole = self.kind(total.args[0]) == "whole"
            name = self._direct.get(total)
            to = Result(total, name) if name else self._leave(total)
            self._add(Kernel("columns", made if whole else [], total=to))
            made = [] if whole else made
        for total in sums:
            if total in self._direct:
                self._known[total] = self._direct[total]
            else:
                self._known[total] = next(
                    k.total.tensor for k in self.kernels if k.total and k.total.value is total
                )
        if made:
            self._add(Kernel("elements", made))
        for result in others:
            self._add(Kernel("values", [Result(result.value, result.name)]))

    def _is_whole(self, result: Output) -> bool:
        return frozenset(d for d in result.dims if d is not None) == frozenset(self._frame)

    def _adds_rows(self, values: Iterable[Value]) -> bool:
        return any(
            v.op in REDUCTIONS and v not in self._known and COLUMNS in v.reduced
            for v in cone(values, self._known)
        )

    def _row_values(self, operands: list[Value]) -> list[Value]:
        """Numbers per row that the sums over all rows need, and that only sums over a row tell."""
        needed: list[Value] = []
        stack = list(operands)
        seen: set[Value] = set()
        while stack:
            value = stack.pop()
            if value in seen or value in self._known:
                continue
            seen.add(value)
            if self.kind(value) == "row" and self._adds_rows([value]):
                needed.append(value)
            else:
                stack.extend(reversed(value.args))
        return needed

    def _leave(self, value: Value) -> Result:
        """A tensor between two kernels."""
        self._between.add(value)
        name = value.name or {"amax": "largest", "sum": "total", "rsqrt": "scale"}.get(
            value.op, "of_row" if self.kind(value) == "row" else "between"
        )
        count, choice = 2, name
        while choice in self._names:
            choice, count = f"{name}{count}", count + 1
        self._names.add(choice)
        return Result(value, choice, is_between=True)

    def _add(self, kernel: Kernel) -> None:
        for value in cone(kernel.targets(), self._known):
            if value in self._known:
                kind = self.kind(value)
                if kind == "part" and kernel.kind in ("rows", "columns"):
                    raise Unmapped(
                        f"{value.name} has some of the leading dims, not all", value.line
                    )
                kernel.given.setdefault(kind, {})[value] = self._known[value]
        self.kernels.append(kernel)
