# SPDX-License-Identifier: Apache-2.0
"""From what torch recorded to a :class:`opforge.formula.graph.Graph`.

Aliases, stretching, permuting and reshaping with ones leave no trace, because a value's axes have
names. What no kernel is written for raises Unmapped with the user's line.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch

from opforge.errors import RecordError
from opforge.formula.capture import Trace
from opforge.formula.example import Example
from opforge.formula.graph import (
    REDUCTIONS,
    Graph,
    Input,
    Maker,
    Output,
    Unmapped,
    Value,
)
from opforge.formula.operations import DTYPES, PYTHON, REASONS, RENAMED, SAME
from opforge.formula.source import Source
from opforge.registration.schema import check_name


def translate(source: Source, example: Example, trace: Trace) -> Graph:
    """The graph of a trace. What cannot be mapped is noted in it: its results, or the gradients."""
    return _Translator(source, example, trace).run()


class _Translator:
    def __init__(self, source: Source, example: Example, trace: Trace) -> None:
        self._source, self._example, self._trace = source, example, trace
        self._maker = Maker()
        self._values: dict[torch.fx.Node, Any] = {}
        self._failed: dict[torch.fx.Node, Unmapped] = {}

    def run(self) -> Graph:
        trace = self._trace
        graph = Graph([], [], [], [])
        placeholders = [n for n in trace.graph.nodes if n.op == "placeholder"]
        for name, node in zip(trace.arguments, placeholders, strict=True):
            try:
                made = self._argument(name, node)
            except Unmapped as reason:  # the gradient of a result of sizes that no argument has
                self._failed[node] = reason
                made = Input(name, Value("input", name=name))
            (graph.incoming if name.startswith("grad_") else graph.inputs).append(made)
        for node in trace.graph.nodes:
            if node.op == "call_function":
                self._call(node)
        results = next(n for n in trace.graph.nodes if n.op == "output").args[0]
        results = list(results) if isinstance(results, (tuple, list)) else [results]
        names = self._output_names(trace.outputs)
        for name, node in zip(names, results[: trace.outputs], strict=True):
            try:
                graph.outputs.append(self._output(name, node))
            except Unmapped as reason:
                graph.why_no_kernel = graph.why_no_kernel or reason
                graph.outputs.append(Output(name, self._maker.constant(0), ()))
        for i, made in enumerate(graph.incoming):
            made.name = made.value.name = f"grad_{names[i]}"
        self._name_values(graph)
        try:
            if graph.why_no_kernel:
                raise graph.why_no_kernel
            self._add_gradients(graph, results[trace.outputs :])
        except Unmapped as reason:
            graph.gradients, graph.why_no_gradient = [], reason
        graph.frame = tuple(self._frame())
        graph.rank = len(graph.frame)
        return graph

    def _frame(self) -> list[str]:
        named = [d for i in self._trace.axis_sizes.values() for d in (i,)]
        order = sorted((a for a in named if a != "c"), key=lambda a: -int(a[1:]))
        return [*order, "c"] if "c" in named else order

    def _argument(self, name: str, node: torch.fx.Node) -> Input:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            dims = self._dims(node)
            axes = frozenset(d for d in dims if d is not None)
            made = Input(name, Value("input", axes=axes, name=name), dims)
        else:
            made = Input(name, Value("number", name=name), (), is_tensor=False)
        self._values[node] = made.value
        return made

    def _output_names(self, count: int) -> list[str]:
        taken = {p.name for p in self._source.parameters}
        names = self._source.returned()
        if len(names) != count:
            names = [""] * count
        plain = ["y"] if count == 1 else [f"y{i + 1}" for i in range(count)]
        found: list[str] = []
        for name, other in zip(names, plain, strict=True):
            bad = not name or name in taken or name in found or name != name.lower()
            choice = other if bad else name
            while choice in taken or choice in found:
                choice += "_"
            found.append(choice)
        return found

    def _name_values(self, graph: Graph) -> None:
        """The last value that a statement made has the name that it assigns."""
        last: dict[str, tuple[int, Value]] = {}
        for node, value in self._values.items():
            if not isinstance(value, Value) or value.op in ("input", "number", "constant"):
                continue
            statement = self._source.statement(_line(node))
            if statement is not None and statement.name:
                last[statement.name] = (statement.first, value)
        taken = {i.name for i in (*graph.inputs, *graph.incoming)}
        for name, (_, value) in last.items():
            if name not in taken and not value.on_host and _is_identifier(name):
                value.name = name
        for output in graph.outputs:
            if not output.value.name:
                output.value.name = output.name

    def _output(self, name: str, node: torch.fx.Node) -> Output:
        value = self._value(node)
        dims = self._dims(node)
        self._check_order(dims, node)
        return Output(name, value, dims)

    def _check_order(self, dims: Sequence[str | None], node: torch.fx.Node) -> None:
        order = [d for d in dims if d is not None]
        frame = [a for a in self._frame() if a in order]
        if order != frame:
            raise Unmapped("its dims are in another order than those of the arguments", _line(node))

    def _add_gradients(self, graph: Graph, nodes: list[torch.fx.Node]) -> None:
        if self._trace.why_no_gradient:
            raise Unmapped(self._trace.why_no_gradient)
        given = iter(nodes)
        for tensor, has_one in zip(graph.tensors, self._trace.gradients, strict=True):
            value = self._value(next(given)) if has_one else self._maker.constant(0)
            graph.gradients.append(Output(f"grad_{tensor.name}", value, tensor.dims))

    def _value(self, node: Any) -> Value:
        """The value of a node, or of a number in its place."""
        if isinstance(node, torch.fx.Node):
            if node in self._failed:
                raise self._failed[node]
            made: Value = self._values[node]
            return made
        if isinstance(node, (bool, int, float)):
            return self._maker.constant(node)
        raise Unmapped(f"an argument {node!r}")

    def _dims(self, node: torch.fx.Node) -> tuple[str | None, ...]:
        """The axis of each dim of a tensor."""
        return tuple(self._axis(n, node) for n in node.meta["val"].shape)

    def _axis(self, size: Any, node: torch.fx.Node) -> str | None:
        if isinstance(size, torch.SymInt):
            axis = self._trace.symbols.get(str(size.node.expr))
            if axis is None and not size.node.expr.is_number:
                raise Unmapped("a reshape that puts dims together or takes them apart", _line(node))
            if axis is not None:
                return axis
            size = int(size.node.expr)
        if size == 1:
            return None
        if size in self._trace.axis_sizes:
            return self._trace.axis_sizes[size]
        raise Unmapped(f"a dim of {size} elements that no argument has", _line(node))

    def _call(self, node: torch.fx.Node) -> None:
        self._maker.line = _line(node)
        if "_local_scalar_dense" in str(node.target):
            raise self._source.error(
                "the formula reads the value of a tensor (.item()); kernels compute all elements "
                "alike: keep it a tensor",
                _line(node),
            )
        try:
            self._values[node] = self._made(node)
        except Unmapped as reason:
            reason.line = reason.line or _line(node)
            self._failed[node] = reason

    def _made(self, node: torch.fx.Node) -> Any:
        value = node.meta.get("val")
        if node.target in PYTHON:
            return self._maker.apply(PYTHON[node.target], *map(self._operand, node.args))
        if isinstance(value, (torch.SymInt, torch.SymFloat)):
            return self._symbol(value.node.expr)
        if node.target is operator.getitem:
            source: Any = node.args[0]
            if source in self._failed:
                raise self._failed[source]
            return self._values[source][node.args[1]]  # type: ignore[index]
        name = getattr(node.target, "__name__", str(node.target)).split(".")[0]
        name = name.rstrip("_") if not name.startswith("_") else name
        if isinstance(value, torch.Tensor) and value.dtype not in DTYPES:
            raise Unmapped(f"a tensor of {value.dtype} ({name})")
        return self._operation(name, node)

    def _symbol(self, expr: Any) -> Value:
        """The value of an expression of sizes and numbers."""
        maker = self._maker
        if isinstance(expr, sympy.Symbol):
            meaning = self._trace.symbols.get(str(expr), "")
            if meaning.startswith("="):
                return next(
                    v
                    for v in self._values.values()
                    if isinstance(v, Value) and v.op == "number" and v.name == meaning[1:]
                )
            if not meaning:
                raise Unmapped(f"an unknown size {expr}")
            return maker.size([meaning])
        if expr.is_number:
            return self._number(float(expr))
        names = [str(s) for s in getattr(expr, "args", ())]
        axes = [self._trace.symbols.get(n, "=") for n in names]
        if expr.is_Mul and not any(a.startswith("=") for a in axes):
            return maker.size(axes)
        if type(expr).__name__ == "ToFloat":
            return self._symbol(expr.args[0])
        folded = {
            "Add": "add",
            "Mul": "mul",
            "FloatTrueDiv": "div",
            "IntTrueDiv": "div",
            "Pow": "pow",
            "FloatPow": "pow",
            "PowByNatural": "pow",
        }
        kind = folded.get(type(expr).__name__)
        if kind is None and "sqrt" in type(expr).__name__.lower():
            return maker.apply("sqrt", self._symbol(expr.args[0]))
        if kind is None:
            raise Unmapped(f"a number made as {expr}")
        parts = [self._symbol(a) for a in expr.args]
        result = parts[0]
        for part in parts[1:]:
            result = maker.apply(kind, result, part)
        return result

    def _number(self, number: float) -> Value:
        """A constant, or the size or number argument that torch has replaced by its value."""
        if (size := self._of_size(number)) is not None:
            return size
        for name, value in self._trace.numbers.items():
            argument = next(
                (
                    v
                    for v in self._values.values()
                    if isinstance(v, Value) and v.op == "number" and v.name == name
                ),
                None,
            )
            if argument is None:
                continue
            one = self._maker.constant(1)
            forms: tuple[tuple[float, str, tuple[Value, ...]], ...] = (
                (-value, "neg", (argument,)),
                (value - 1, "sub", (argument, one)),
                (1 - value, "sub", (one, argument)),
                (1 / value, "div", (one, argument)),
            )
            if math.isclose(number, value, rel_tol=1e-13):
                return argument
            for form, op, operands in forms:
                if math.isclose(number, form, rel_tol=1e-13):
                    return self._maker.apply(op, *operands)
        return self._maker.constant(number)

    def _of_size(self, number: float) -> Value | None:
        """n, 2 n, 1 / n, 2 / n and the like, where n is a count of elements, or one less."""
        apply, constant = self._maker.apply, self._maker.constant
        if not math.isfinite(number):
            return None
        for factor in (1.0, 2.0, 0.5, -1.0, -2.0, -0.5):
            for less in (0, 1):
                for is_inverse in (False, True):
                    if is_inverse and not 0 < abs(number) < 1e-2:
                        continue
                    count = factor / number if is_inverse else number / factor
                    whole = round(count) + less
                    if not math.isclose(count, whole - less, rel_tol=1e-12):
                        continue
                    if not (axes := self._axes_with(whole)):
                        continue
                    size = self._maker.size(axes)
                    size = apply("sub", size, constant(less)) if less else size
                    if is_inverse:
                        return apply("div", constant(factor), size)
                    return apply("mul", constant(factor), size)
        return None

    def _operation(self, name: str, node: torch.fx.Node) -> Any:
        args = list(node.args)
        if name in SAME or (name == "slice" and self._keeps_all(node)):
            return self._same(name, node)
        if name == "slice_scatter" and self._replaces_all(node):
            return self._value(args[1])
        if name in ("amin", *REDUCTIONS):
            return self._reduction(name, node)
        if name == "mean":
            return self._mean(node)
        if name == "copy":
            return self._value(args[1])
        if name in ("var_mean", "var"):
            return self._variance(name, node)
        if name in ("full", "full_like", "scalar_tensor", "new_full"):
            place = {"full": 1, "full_like": 1, "scalar_tensor": 0, "new_full": 2}[name]
            return self._operand(args[place])
        if name in ("zeros", "zeros_like", "new_zeros", "ones", "ones_like", "new_ones"):
            return self._maker.constant(1 if "one" in name else 0)
        if node.kwargs.get("rounding_mode"):
            raise Unmapped("a division that rounds")
        apply = self._maker.apply
        if name in ("add", "sub", "rsub"):
            a, b = map(self._operand, args[:2])
            alpha = args[2] if len(args) > 2 else node.kwargs.get("alpha", 1)
            b, a = (a, b) if name == "rsub" else (b, a)
            if alpha != 1:
                b = apply("mul", b, self._operand(alpha))
            return apply("sub" if name != "add" else "add", a, b)
        if name == "reciprocal":
            return apply("div", self._maker.constant(1), self._operand(args[0]))
        if name == "square":
            return apply("mul", self._operand(args[0]), self._operand(args[0]))
        if name == "relu":
            x = self._operand(args[0])
            return apply(
                "where", apply("lt", x, self._maker.constant(0)), self._maker.constant(0), x
            )
        if name == "clamp":
            x = self._operand(args[0])
            low = args[1] if len(args) > 1 else node.kwargs.get("min")
            high = args[2] if len(args) > 2 else node.kwargs.get("max")
            if low is not None:
                x = apply("maximum", x, self._operand(low))
            return x if high is None else apply("minimum", x, self._operand(high))
        if name == "masked_fill":
            x, mask, number = map(self._operand, args[:3])
            return apply("where", mask, number, x)
        if name == "isnan":
            x = self._operand(args[0])
            return apply("ne", x, x)
        if name == "fma":
            a, b, c = map(self._operand, args[:3])
            return apply("add", apply("mul", a, b), c)
        if name not in RENAMED:
            what = REASONS.get(name.removesuffix("_backward"), "")
            raise Unmapped(f"{what} ({name})" if what else f"the operation {name}")
        return apply(RENAMED[name], *(self._operand(a) for a in args if a is not None))

    def _operand(self, node: Any) -> Value:
        if isinstance(node, float):
            return self._number(node)
        if isinstance(node, int) and (size := self._of_size(float(node))) is not None:
            return size
        return self._value(node)

    def _axes_with(self, number: int) -> list[str]:
        """The axes that have so many elements together, where torch made a number of them."""
        known = list(self._trace.axis_sizes.items())
        for count in range(1, len(known) + 1):
            for some in itertools.combinations(known, count):
                if math.prod(size for size, _ in some) == number:
                    return [axis for _, axis in some]
        return []

    def _keeps_all(self, node: torch.fx.Node) -> bool:
        """Whether a slice is of a whole dim, as in x[:, None]."""
        source: Any = node.args[0]
        step: Any = node.args[4] if len(node.args) > 4 else 1
        return step == 1 and bool(node.meta["val"].shape == source.meta["val"].shape)

    def _replaces_all(self, node: torch.fx.Node) -> bool:
        """Whether a tensor is put in the place of a whole one."""
        source: Any = node.args[1]
        step: Any = node.args[5] if len(node.args) > 5 else 1
        return step == 1 and bool(node.meta["val"].shape == source.meta["val"].shape)

    def _same(self, name: str, node: torch.fx.Node) -> Value:
        """Another view of a value, or a conversion, which the compute type makes void."""
        x = self._value(node.args[0])
        if isinstance(node.meta.get("val"), torch.Tensor):
            self._dims(node)  # refuses reshapes that mix axes
            dtype = node.meta["val"].dtype
            if dtype == torch.int64 and not x.is_bool:
                return self._maker.apply("trunc", x)
            if dtype == torch.bool and not x.is_bool:
                return self._maker.apply("ne", x, self._maker.constant(0))
            if dtype != torch.bool and x.is_bool:
                return self._maker.apply(
                    "where", x, self._maker.constant(1), self._maker.constant(0)
                )
        return x

    def _axes_of(self, node: torch.fx.Node, dim: Any) -> list[str]:
        dims = self._dims(node)
        if dim is None or (isinstance(dim, (list, tuple)) and not dim):
            return [d for d in dims if d is not None]
        listed = [dim] if isinstance(dim, int) else list(dim)
        return [a for a in (dims[d] for d in listed) if a is not None]

    def _reduction(self, name: str, node: torch.fx.Node) -> Value:
        x = self._value(node.args[0])
        if x.is_bool:
            x = self._maker.apply("where", x, self._maker.constant(1), self._maker.constant(0))
        dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
        return self._maker.reduce(name, x, self._axes_of(node.args[0], dim))  # type: ignore[arg-type]

    def _mean(self, node: torch.fx.Node) -> Value:
        x = self._value(node.args[0])
        dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
        axes = self._axes_of(node.args[0], dim)  # type: ignore[arg-type]
        total = self._maker.reduce("sum", x, axes)
        return self._maker.apply("div", total, self._maker.size(axes))

    def _variance(self, name: str, node: torch.fx.Node) -> Any:
        maker, x = self._maker, self._value(node.args[0])
        dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
        correction = node.kwargs.get("correction", 1)
        axes = self._axes_of(node.args[0], dim)  # type: ignore[arg-type]
        mean = maker.apply("div", maker.reduce("sum", x, axes), maker.size(axes))
        centred = maker.apply("sub", x, mean)
        squares = maker.reduce("sum", maker.apply("mul", centred, centred), axes)
        count = maker.size(axes)
        if correction not in (0, None):
            count = maker.apply("sub", count, self._operand(float(correction)))  # type: ignore[arg-type]
        variance = maker.apply("div", squares, count)
        return variance if name == "var" else (variance, mean)


def _is_identifier(name: str) -> bool:
    try:
        check_name(name)
    except RecordError:
        return False
    return True


def _line(node: torch.fx.Node) -> int | None:
    """The user's line that a node comes from."""
    trace = str(node.meta.get("stack_trace") or node.stack_trace or "")
    return int(trace.removeprefix("line ")) if trace.startswith("line ") else None
