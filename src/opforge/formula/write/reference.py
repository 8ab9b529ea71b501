# SPDX-License-Identifier: Apache-2.0
"""The backward in plain PyTorch, from the graph of the gradients."""

from __future__ import annotations

from collections.abc import Mapping

from opforge.formula.graph import COLUMNS, Graph, Input, Output, Unmapped, Value
from opforge.formula.group import kind_of
from opforge.formula.source import Source
from opforge.formula.words import RESERVED
from opforge.formula.write.expressions import Language, Writer
from opforge.new.lines import function

_FUNCTIONS = {"amax": "amax"}


class BackwardReference:
    """Writes ``backward_reference``. ``tensors``: its tensor parameters by name."""

    def __init__(
        self,
        graph: Graph,
        source: Source,
        tensors: Mapping[str, Input | Output],
        numbers: list[str],
        shape: str = "",
    ) -> None:
        self._graph, self._source, self._shape = graph, source, shape
        self._tensors, self._numbers = dict(tensors), numbers
        whole = [n for n, t in tensors.items() if kind_of(t.value, graph.frame) == "whole"]
        self._any = next(iter(tensors))
        self.like = whole[0] if whole else "frame" if shape else self._any
        self.adds_columns = False  # whether it needs the function that adds up all rows

    def text(self) -> str:
        """The whole function."""
        given = {t.value: n for n, t in self._tensors.items()}
        lines: list[str] = []
        if self._shape:
            lines.append(f"frame = {self._any}.new_zeros({self._shape})")
        for name, tensor in self._tensors.items():
            # A number per row stands in a column, so that it goes with the rows.
            if kind_of(tensor.value, self._graph.frame) == "row" and self._lacks_last(tensor):
                lines.append(f"{name} = {name}.unsqueeze(-1)")
        results = self._graph.gradients
        writer = Writer(
            self._language(), given, {*self._tensors, *self._numbers, *RESERVED, "frame"}
        )
        made = writer.write([r.value for r in results])
        lines += writer.lines
        for result, text in zip(results, made, strict=True):
            lines.append(f"{result.name} = {self._shaped(result, text)}")
        lines.append(f"return {', '.join(r.name for r in results)}")
        parameters = [f"{n}: Tensor" for n in self._tensors] + [
            f"{n}: float" for n in self._numbers
        ]
        if self._shape:
            parameters.insert(len(self._tensors), f"{self._shape}: list[int]")
        count = len(results)
        kind = "Tensor" if count == 1 else f"tuple[{', '.join(['Tensor'] * count)}]"
        head = function("backward_reference", parameters, kind)
        names = [r.name.removeprefix("grad_") for r in results]
        words = " and ".join([", ".join(names[:-1]), names[-1]]) if names[1:] else names[0]
        doc = f'"""The gradient{"s" if count > 1 else ""} of {words}."""'
        return "\n".join([head, f"    {doc}", *(f"    {line}" for line in lines), ""])

    def _language(self) -> Language:
        return Language(
            number=lambda text: text,
            function=lambda op: f"torch.{_FUNCTIONS.get(op, op)}",
            where=self._where,
            statement=lambda name, text, is_mask: f"{name} = {text}",
            size=self._size,
            comment="#",
            power=lambda a, b: f"torch.pow({a}, {b})",
            negate_mask=lambda mask: f"torch.logical_not({mask})",
            reduce=self._reduce,
            with_numbers={
                "maximum": "torch.clamp({x}, min={number})",
                "minimum": "torch.clamp({x}, max={number})",
            },
            plain_numbers=True,
        )

    def _lacks_last(self, tensor: Input | Output) -> bool:
        return (bool(tensor.dims) and tensor.dims[-1] is not None) or not tensor.dims

    def _where(self, mask: str, a: str, b: str) -> str:
        if all(t.lstrip("-").replace(".", "").isdigit() for t in (a, b)):
            if (a, b) == ("1", "0"):
                return f"({mask}).to({self.like}.dtype)"
            return f"torch.where({mask}, {float(a)}, {float(b)}).to({self.like}.dtype)"
        return f"torch.where({mask}, {a}, {b})"

    def _size(self, value: Value) -> str:
        if COLUMNS not in value.reduced:
            return f"math.prod({self.like}.shape[:-1])"
        return f"{self.like}.shape[-1]" if value.reduced == {COLUMNS} else f"{self.like}.numel()"

    def _reduce(self, value: Value, text: str) -> str:
        inside = text if text.isidentifier() else f"({text})"
        if COLUMNS in value.reduced:
            name = "sum" if value.op == "sum" else value.op
            return f"{inside}.{name}(-1, keepdim=True)"
        if kind_of(value, self._graph.frame) == "one":
            return f"{inside}.sum()"
        if kind_of(value.args[0], self._graph.frame) != "whole":
            raise Unmapped("a sum of values that are not whole", value.line)
        self.adds_columns = True
        return f"over_rows({text})"

    def _shaped(self, result: Output, text: str) -> str:
        """The result in its shape: a value may vary along fewer dims than it has."""
        axes = frozenset(d for d in result.dims if d is not None)
        inside = text if text.isidentifier() else f"({text})"
        kind = kind_of(Value("", axes=axes), self._graph.frame)
        if result.value.on_host or result.value.axes != axes:
            same = axes == frozenset(self._graph.frame)
            zeros = f"torch.zeros_like({self.like})" if same else self._zeros(result)
            return f"{zeros} + {text}" if text != "0" else zeros
        if kind == "row" and self._lacks_last(result):
            return f"{inside}.squeeze(-1)"
        if result.value in {t.value for t in self._tensors.values()}:
            return f"{inside}.clone()"
        if kind == "one" and result.dims:
            return f"{inside}.reshape({', '.join('1' for _ in result.dims)})"
        return text

    def _zeros(self, result: Output) -> str:
        name = result.name.removeprefix("grad_")
        if name in self._tensors:
            return f"torch.zeros_like({name})"
        raise Unmapped(f"the gradient of {name}, which is the same number everywhere")


OVER_ROWS = '''def over_rows(x: Tensor) -> Tensor:
    """The sum over all dims but the last."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1]).sum(0)
'''
