# SPDX-License-Identifier: Apache-2.0
"""``host.h``: check, allocate, launch. cuda.cu and cpu.cpp compile it, each for its device."""

from __future__ import annotations

from dataclasses import dataclass

from opforge.formula.graph import Graph, Input, Output, Unmapped, Value
from opforge.formula.group import Grouping, Kernel, Kind, Result, kind_of
from opforge.formula.write.kernel import Struct
from opforge.registration.schema import Arg

_TYPES = {
    "Tensor": "const Tensor& ",
    "float": "double ",
    "int[]": "const std::vector<int64_t>& ",
}


@dataclass
class Function:
    """A function of the op: the forward or the backward."""

    name: str  # of its schema
    arguments: list[Arg]
    results: list[Output]
    grouping: Grouping
    structs: list[Struct | None]  # of each kernel
    tensors: dict[str, Input | Output]  # its tensor arguments, by name
    has_rows: bool = False  # whether the backward needs a last dim
    shape: str = ""  # the argument with the shape of a whole result, where no tensor has it

    @property
    def schema(self) -> str:
        """As a record has it."""
        taken = ", ".join(f"{a.type} {a.name}" for a in self.arguments)
        made = ", ".join(f"Tensor {r.name}" for r in self.results)
        return f"{self.name}({taken}) -> {made if len(self.results) == 1 else f'({made})'}"


def host_function(function: Function, graph: Graph, op: str) -> str:
    """The C++ function of a schema."""
    return _HostWriter(function, graph, op).write()


class _HostWriter:
    def __init__(self, function: Function, graph: Graph, op: str) -> None:
        self._function, self._graph, self._op = function, graph, op
        whole = [n for n, t in function.tensors.items() if self._kind(t.value) == "whole"]
        self._like = whole[0] if whole else ""
        self._made_first = ""
        if not whole and function.shape:
            self._like = self._made_first = f"grad_{function.shape.removesuffix('_shape')}"

    def _kind(self, value: Value) -> Kind:
        return kind_of(value, self._graph.frame)

    def write(self) -> str:
        function = self._function
        types = ", ".join(["Tensor"] * len(function.results))
        returned = "Tensor" if len(function.results) == 1 else f"std::tuple<{types}>"
        taken = ", ".join(f"{_TYPES[a.type]}{a.name}" for a in function.arguments)
        lines = [f"inline {returned} {function.name}({taken}) {{"]
        if self._made_first:
            lines.append(f"  const Tensor {self._like} = empty({function.shape}, {self._any});")
        lines += self._checks()
        for result in function.results:
            if result.name == self._made_first:
                continue
            lines.append(
                f"  const Tensor {result.name} = empty({self._shape(result)}, {self._any});"
            )
        for kernel, struct in zip(function.grouping.kernels, function.structs, strict=True):
            lines += self._call(kernel, struct)
        names = ", ".join(r.name for r in function.results)
        lines.append(
            f"  return {names};" if len(function.results) == 1 else f"  return {{{names}}};"
        )
        return "\n".join([*lines, "}", ""])

    @property
    def _any(self) -> str:
        return (
            next(iter(self._function.tensors)) if self._made_first or not self._like else self._like
        )

    def _checks(self) -> list[str]:
        lines = []
        if "eps" in [a.name for a in self._function.arguments]:
            lines.append(f'  OPFORGE_CHECK(eps > 0, "{self._op}: eps must be positive");')
        if not self._like:
            first, *others = self._function.tensors
            return lines + [f'  check_alike("{self._op}", {first}, {o});' for o in others]
        if self._needs_rows:
            lines.append(
                f'  OPFORGE_CHECK({self._like}.dim() >= 1, "{self._op}: {self._like} must '
                'have at least one dim");'
            )
        if not self._graph.any_rank:
            rank = self._graph.rank
            lines.append(
                f'  OPFORGE_CHECK({self._like}.dim() == {rank}, "{self._op}: {self._like} '
                f'must have {rank} dims");'
            )
        for name, tensor in self._function.tensors.items():
            if name == self._like:
                continue
            kind = {
                "whole": "whole",
                "column": "per_column",
                "row": "per_row",
                "one": "number",
                "part": "alike",
            }[self._kind(tensor.value)]
            lines.append(f'  check_{kind}("{self._op}", {self._like}, {name});')
        return lines

    @property
    def _needs_rows(self) -> bool:
        """Whether there must be a last dim."""
        kinds = {self._kind(t.value) for t in self._function.tensors.values()}
        return (
            self._function.has_rows
            or bool(kinds & {"column", "row"})
            or any(k.kind != "elements" for k in self._function.grouping.kernels)
        )

    def _shape(self, result: Output) -> str:
        name = result.name.removeprefix("grad_")
        if result.name.startswith("grad_") and name in self._function.tensors:
            return f"sizes({name})"
        axes = frozenset(d for d in result.dims if d is not None)
        if axes == frozenset(self._graph.frame):
            if not self._like:
                shapes = [f"sizes({n})" for n in self._function.tensors]
                text = shapes[0]
                for shape in shapes[1:]:
                    text = f"broadcast({text}, {shape})"
                return text
            return f"sizes({self._like})"
        if not self._like:
            raise Unmapped("no argument has all dims, and the results have less")
        kind = kind_of(Value("", axes=axes), self._graph.frame)
        if not axes:
            return f"std::vector<int64_t>({len(result.dims)}, 1)" if result.dims else "{}"
        if kind == "row":
            kept = result.dims[-1] is None
            return f"{'kept_rows_of' if kept else 'rows_of'}({self._like})"
        if kind == "column" and len(result.dims) == 1:
            return f"sizes({self._like}).last(1)"
        raise Unmapped("a result with some of the dims, not all")

    def _between(self, result: Result) -> str:
        shapes = {
            "column": f"{{sizes({self._like}).back()}}",
            "row": f"rows_of({self._like})",
            "one": "{}",
        }
        shape = shapes[self._kind(result.value)]
        return f"  const Tensor {result.tensor} = between({shape}, {self._any});"

    def _call(self, kernel: Kernel, struct: Struct | None) -> list[str]:
        lines = [
            self._between(r)
            for r in (*kernel.of_row, *([kernel.total] if kernel.total else []))
            if r.is_between
        ]
        if kernel.kind == "fill":
            if kernel.results[0].value.number != 0:
                raise Unmapped("a result that is the same number everywhere")
            return [*lines, f"  fill_zero({kernel.results[0].tensor});"]
        assert struct is not None
        values = ", ".join(self._member(m) for m in struct.members)
        formula = f"{struct.name}{{{values}}}"
        outs = ", ".join(r.tensor for r in kernel.results)

        def given(*kinds: Kind) -> str:
            return ", ".join(t for k in kinds for t in kernel.given.get(k, {}).values())

        if kernel.kind in ("elements", "values"):
            inputs = given("whole", "column", "row", "one", "part") or self._any
            if kernel.kind == "elements":
                inputs = ", ".join(map(self._beside_columns, inputs.split(", ")))
            to = f"whole({outs})" if kernel.kind == "elements" else outs
            function = "each_element" if kernel.kind == "elements" else "each_value"
            return [*lines, f"  {function}({to}, {formula}, {inputs});"]
        if not self._like:
            raise Unmapped("sums where no argument has all dims")
        if not kernel.given.get("whole") and (
            kernel.kind == "rows" or self._kind(kernel.targets()[-1]) == "whole"
        ):
            raise Unmapped("sums of values that no argument has one of for each element")
        operands = (
            f"whole({given('whole')}), per_column({given('column')}), "
            f"per_row({given('row', 'one')}), whole({outs})"
        )
        if kernel.kind == "rows":
            rows = ", ".join(r.tensor for r in kernel.of_row)
            return [*lines, f"  each_row({self._like}, {formula}, {operands}, per_row({rows}));"]
        assert kernel.total is not None
        return [
            *lines,
            f"  sum_each_column({self._like}, {formula}, {operands}, {kernel.total.tensor});",
        ]

    def _beside_columns(self, name: str) -> str:
        """A tensor with a value per row, as it is broadcast to the rows."""
        tensor = self._function.tensors.get(name)
        if tensor is None or self._kind(tensor.value) != "row" or self._graph.rank < 2:
            return name
        return name if tensor.dims[-1] is None else f"beside_columns({name})"

    def _member(self, member: str) -> str:
        x = self._like or self._any
        sizes = {
            "cols": f"double(sizes({x}).back())",
            "rows": f"double(count_rows({x}))",
            "count": f"double({x}.numel())",
        }
        return sizes.get(member, member)


def check_members(function: Function) -> None:
    """Raise Unmapped for a kernel that has no operation: nothing would be gained."""
    if not any(function.structs):
        raise Unmapped("it computes nothing")
