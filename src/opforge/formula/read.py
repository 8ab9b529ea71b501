# SPDX-License-Identifier: Apache-2.0
"""Reads a function as a graph, and makes sure that it holds for all sizes and numbers."""

from __future__ import annotations

import ast
import inspect
from typing import Any

import torch

from opforge.errors import NewError, RecordError
from opforge.formula.capture import trace
from opforge.formula.example import Example
from opforge.formula.graph import COLUMNS, Graph, Unmapped, Value, cone
from opforge.formula.source import Source
from opforge.formula.translate import translate
from opforge.formula.words import RESERVED
from opforge.registration.schema import check_name


def read(source: Source, example: Example) -> Graph:
    """The graph of a function. Raises FormulaError for what is no formula.

    torch may make a constant of a size or a number. So the function is traced again, with other
    ones: the graphs must be the same. With one more dim in front, this also tells whether leading
    dims may be any.
    """
    refuse_state(source)
    refuse_names(source)
    graph = translate(source, example, trace(source, example))
    if graph.why_no_kernel:
        return graph
    if _agrees(source, example, graph, extra_axes=1):
        graph.any_rank = True
    elif not _agrees(source, example, graph, extra_axes=0):
        graph.why_no_kernel = Unmapped(
            "a number in it depends on the sizes, or on the number arguments, in a way that torch "
            "does not show"
        )
    return graph


def _agrees(source: Source, example: Example, graph: Graph, extra_axes: int) -> bool:
    try:
        again = trace(source, example, extra_axes, turn=1)
        other = translate(source, example, again)
    except (NewError, Unmapped):
        return False
    return not other.why_no_kernel and _canonical(graph) == _canonical(other)


def _canonical(graph: Graph) -> list[Any]:
    """The graph without what differs where there are more leading dims."""
    rows = frozenset(graph.frame) - {COLUMNS}

    def axes(of: frozenset[str]) -> tuple[str, ...]:
        inside = of & rows
        named = ("rows",) if inside == rows else tuple(sorted(inside))
        return (*named, *(of & {COLUMNS}))

    results = [*graph.outputs, *graph.gradients]
    numbers: dict[int, int] = {}
    lines: list[Any] = []
    for value in cone([r.value for r in results]):
        numbers[id(value)] = len(numbers)
        made_of = [numbers[id(a)] for a in value.args]
        what = value.name if value.op in ("input", "number") else repr(value.number)
        lines.append((value.op, what, made_of, axes(value.axes), axes(value.reduced)))
    for result in results:
        varying = axes(frozenset(d for d in result.dims if d is not None))
        lines.append((result.name, numbers[id(result.value)], varying))
    return lines


def refuse_state(source: Source) -> None:
    """Raise FormulaError for a function that prints, or uses tensors or modules from outside."""
    above = source.first - 1
    for node in ast.walk(source.tree):
        called = node.func if isinstance(node, ast.Call) else None
        if isinstance(called, ast.Name) and called.id in ("print", "input", "open"):
            raise source.error(
                f"{source.name} calls {called.id}(), which a kernel cannot; leave it out",
                above + called.lineno,
            )
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            raise source.error(
                f"{source.name} changes {node.names[0]}, which is not its own; return it instead",
                above + node.lineno,
            )
    outside = inspect.getclosurevars(source.function)
    for name, value in {**outside.globals, **outside.nonlocals}.items():
        if isinstance(value, (torch.Tensor, torch.nn.Module)):
            kind = "a tensor" if isinstance(value, torch.Tensor) else "a module"
            raise source.error(
                f"{source.name} uses {name}, {kind} from outside; make it an argument, as in "
                f"{source.name}(…, {'weight' if kind == 'a module' else name}: Tensor)",
                _line_with(source, name),
            )


def refuse_names(source: Source) -> None:
    """Raise FormulaError for parameters whose names the code needs itself."""
    for parameter in source.parameters:
        name = parameter.name
        try:
            check_name(name, "parameter")
        except RecordError as error:
            reason = str(error).partition(": ")[2] or str(error)
            raise source.error(f"a kernel cannot have the parameter {name!r}: {reason}") from None
        if name in RESERVED:
            raise source.error(
                f"{name!r} has a meaning of its own in the kernels; rename the parameter, as in "
                f"{name}_value"
            )


def _line_with(source: Source, name: str) -> int:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Name) and node.id == name:
            return source.first - 1 + node.lineno
    return source.first


def is_whole(graph: Graph, value: Value) -> bool:
    """Whether a value varies along all axes."""
    return value.axes == frozenset(graph.frame)
