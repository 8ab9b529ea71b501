# SPDX-License-Identifier: Apache-2.0
"""``op.py``: the user's function as the reference, the backward, checks, cases and the record."""

from __future__ import annotations

import re
from dataclasses import dataclass

from opforge.formula.example import Example
from opforge.formula.graph import COLUMNS, Graph, Input
from opforge.formula.group import kind_of
from opforge.formula.source import Source
from opforge.formula.write.host import Function
from opforge.formula.write.reference import OVER_ROWS, BackwardReference
from opforge.interactive import program
from opforge.new import lines

_SHAPES = "(5,), (1, 1), (0, 4), (3, 0), (7, 31), (64, 33), (2, 3, 1025), (300, 8)"
_STRIDED = ("make(40, 24).t()", "make(33, 66)[:, 1:]", "make(16, 32)[::2]")
_OF_RANK = {
    1: ("(5,), (0,), (1,), (31,), (1025,), (4096,)", ("make(129)[1:]", "make(66)[::2]")),
    2: ("(5, 3), (1, 1), (0, 4), (3, 0), (7, 31), (64, 33), (6, 1025), (300, 8)", _STRIDED),
    3: ("(2, 3, 5), (1, 1, 1), (0, 3, 4), (2, 3, 0), (2, 7, 31), (2, 3, 1025), (30, 10, 8)",
        ("make(4, 40, 24).transpose(0, 1)", "make(3, 11, 66)[:, :, 1:]")),
}  # fmt: skip


@dataclass
class Record:
    """What op.py is made of."""

    name: str
    source: Source
    example: Example
    graph: Graph
    forward: Function | None  # None: no kernels
    backward: Function | None
    dtypes: list[str]  # torch's names, if not all
    origin: str  # where the function is, and a digest of it
    operations: int

    def text(self) -> str:
        """The whole file."""
        imports, statements = program.copy(self.source.function)
        statements[-1] = self._renamed(statements[-1])
        body = [s.rstrip("\n") + "\n" for s in statements]
        if self.backward is not None:
            body += self._backward()
        if self.forward is None:
            body.append(f"SCHEMA = {lines.string(self.schema, 0, len('SCHEMA = '))}\n")
        body += [self._validate(), self._cases(), self._op(), self._public()]
        code = "\n\n".join(b for b in body if b)
        return f'"""{self._title()}"""\n\n{self._imports(imports, code)}\n\n{self.origin}\n{code}'

    def _title(self) -> str:
        doc = (self.source.function.__doc__ or "").strip().split("\n")[0].rstrip(".")
        what = doc or "; ".join(s.text.removeprefix("return ") for s in self.source.statements)
        text = f"{self.name}: {what}."
        return text if len(text) < 90 else f"{self.name}: {what[: 80 - len(self.name)].rstrip()} …"

    def _renamed(self, text: str) -> str:
        """The user's function under the name reference."""
        own = self.source.name
        if text.startswith(f"def {own}("):
            return text.replace(f"def {own}(", "def reference(", 1)
        own = "_<lambda>" if own == "<lambda>" else own
        return re.sub(rf"^{re.escape(own)}(?!\w)", "reference", text)

    def _imports(self, given: list[str], code: str) -> str:
        standard = {
            "from __future__ import annotations",
            "from collections.abc import Iterator",
            "from typing import Any",
        }
        others = {i for i in given if not i.startswith(("from opforge import", "from __future__"))}
        others -= {"import torch", "from torch import Tensor"}
        if "math." in code:
            standard.add("import math")
        other_standard = {
            i
            for i in others
            if i.split()[1].split(".")[0]
            in ("math", "sys", "collections", "typing", "functools", "operator")
        }
        standard |= other_standard
        third = sorted(others - other_standard)
        third += ["import torch"] if re.search(r"\btorch\.", code) else []
        names = [n for n in ("Backward", "Make", "Op") if re.search(rf"\b{n}\b", code)]
        if "by_autograd(" in code:
            third.append("from opforge.formula.composed import by_autograd")
        third += [f"from opforge import {', '.join(names)}", "from torch import Tensor"]
        first = "from __future__ import annotations"
        standard.discard(first)
        paths = [t for t in third if t.startswith("sys.path")]
        third = [t for t in third if t not in paths]
        order = sorted(standard, key=lambda i: (i.startswith("from"), i))
        middle = sorted(third, key=lambda i: (i.startswith("from"), i))
        return "\n".join([first, "", *order, *paths, "", *middle])

    def _backward(self) -> list[str]:
        assert self.backward is not None
        numbers = [a.name for a in self.backward.arguments if a.type == "float"]
        made = BackwardReference(
            self.graph, self.source, self.backward.tensors, numbers, self.backward.shape
        )
        text = made.text()
        return [*([OVER_ROWS] if made.adds_columns else []), text]

    @property
    def _like(self) -> Input:
        whole = [t for t in self.graph.tensors if self._kind(t) == "whole"]
        return whole[0] if whole else self.graph.tensors[0]

    def _kind(self, tensor: Input) -> str:
        return kind_of(tensor.value, self.graph.frame)

    @property
    def _has_whole(self) -> bool:
        return self._kind(self._like) == "whole"

    def _validate(self) -> str:
        graph, like = self.graph, self._like
        others = [t for t in graph.tensors if t is not like]
        eps = any(n.name == "eps" for n in graph.numbers)
        code: list[str] = []
        if self.forward is not None and self._has_whole:
            least = self._least_dims()
            if not graph.any_rank:
                code += self._raise(
                    f"{like.name}.dim() != {graph.rank}",
                    "ValueError",
                    f"{like.name} must have {graph.rank} dims, got shape "
                    f"{{tuple({like.name}.shape)}}",
                )
            elif least:
                many = "a last dim" if least == 1 else f"at least {least} dims"
                code += self._raise(
                    f"{like.name}.dim() < {least}",
                    "ValueError",
                    f"{like.name} must have {many}, got shape {{tuple({like.name}.shape)}}",
                )
            for other in others:
                shape = self._expected_shape(other)
                like_shape = (
                    ""
                    if shape == f"{like.name}.shape"
                    else (f", as {like.name} has shape {{tuple({like.name}.shape)}}")
                )
                of = f" of {like.name}" if not like_shape else ""
                code += self._raise(
                    f"{other.name}.shape != {shape}",
                    "ValueError",
                    f"{other.name} must have the shape{of} {{tuple({shape})}}"
                    f"{like_shape}, got {{tuple({other.name}.shape)}}",
                )
        for other in others:
            code += self._raise(
                f"{other.name}.dtype != {like.name}.dtype",
                "TypeError",
                f"{like.name} is {{{like.name}.dtype}} but {other.name} is "
                f"{{{other.name}.dtype}}; convert one",
            )
        if eps:
            code += self._raise("not eps > 0", "ValueError", "eps must be positive, got {eps}")
        if not code:
            return ""
        params = (
            [f"{t.name}: Tensor" for t in (like, *others)] if others or len(code) > 2 * eps else []
        )
        params = params if any(like.name in c for c in code) else []
        params += ["eps: float"] if eps else []
        head = lines.function("validate", params, "None")
        return "\n".join([head, '    """What the formula takes."""', *code, ""])

    def _raise(self, test: str, error: str, message: str) -> list[str]:
        whole = f'f"{self.name}: {message}"'
        parts = [whole]
        if len(whole) > 80 and ", got" in message:
            cut = message.index(", as" if ", as" in message else ", got")
            parts = [f'f"{self.name}: {message[:cut]}"', f'f"{message[cut:]}"']
        return [f"    if {test}:", *lines.raises(8, error, *parts)]

    def _least_dims(self) -> int:
        """How many dims the first tensor has at least."""
        assert self.forward is not None
        kernels = self.forward.grouping.kernels
        if any(k.kind in ("columns", "values") for k in kernels):
            return self.graph.rank
        if self.backward is not None:
            kernels = [*kernels, *self.backward.grouping.kernels]
        kinds = {self._kind(t) for t in self.graph.tensors}
        return int(
            bool(kinds & {"column", "row"}) or any(k.kind in ("rows", "columns") for k in kernels)
        )

    def _expected_shape(self, tensor: Input) -> str:
        x, kind = self._like.name, self._kind(tensor)
        if kind == "whole":
            return f"{x}.shape"
        if kind == "column" and len(tensor.dims) == 1:
            return f"{x}.shape[-1:]"
        if kind == "row" and self.graph.any_rank:
            return f"(*{x}.shape[:-1], 1)" if tensor.dims[-1] is None else f"{x}.shape[:-1]"
        sizes = [self._size(d, f"{x}.shape") for d in tensor.dims]
        return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"

    def _size(self, axis: str | None, shape: str) -> str:
        if axis is None:
            return "1"
        return f"{shape}[-1]" if axis == COLUMNS else f"{shape}[{-2 - int(axis[1:])}]"

    def _made(self, tensor: Input, like: str = "") -> str:
        """``make(…)`` for a tensor of a case."""
        kind = self._kind(tensor)
        if kind == "whole":
            return like or "make(*shape)"
        if kind == "row" and self.graph.any_rank:
            return "make(*shape[:-1], 1)" if tensor.dims[-1] is None else "make(*shape[:-1])"
        return f"make({', '.join(self._size(d, 'shape') for d in tensor.dims)})"

    def _case(self, like: str, turn: int) -> str:
        values = []
        for argument in self.graph.inputs:
            if not argument.is_tensor:
                number = self.example.numbers[argument.name]
                values.append(repr(number if turn == 0 else number * (1 + 0.5 * turn)))
            else:
                values.append(self._made(argument, like if argument is self._like else ""))
        return f"({values[0]},)" if len(values) == 1 else ", ".join(values)

    def _cases(self) -> str:
        any_rank = self.graph.any_rank
        least = self._least_dims() if self.forward is not None else 0
        if any_rank:
            shapes: str = _SHAPES
            strided: tuple[str, ...] = _STRIDED
            shapes = shapes if least < 2 else shapes.removeprefix("(5,), ")
        else:
            shapes, strided = _OF_RANK.get(self.graph.rank, (self._other_shapes(), ()))
        if self._finds_largest:
            shapes = ", ".join(
                s
                for s in re.findall(r"\([^)]*\)", shapes)
                if "0)" not in s or not s.endswith(" 0)")
            )
            shapes = shapes.replace("(0,), ", "")
        code = [
            "def cases(make: Make) -> Iterator[tuple[Any, ...]]:",
            '    """Rows around the vector width, many, empty and strided."""',
            f"    for shape in [{shapes}]:",
            f"        yield {self._case('', 0)}",
        ]
        for turn, made in enumerate(strided, 1):
            if any(self._kind(t) != "whole" for t in self.graph.tensors):
                code += [
                    f"    x = {made}",
                    "    shape = x.shape",
                    f"    yield {self._case('x', turn)}",
                ]
            else:
                code.append(f"    yield {self._case(made, turn).replace('make(*shape)', made)}")
        return "\n".join([*code, ""])

    def _other_shapes(self) -> str:
        rank = self.graph.rank
        pads = ", ".join(["2"] * (rank - 2))
        return ", ".join(f"({pads}, {s})" for s in ("3, 5", "1, 1", "0, 4", "7, 31", "3, 1025"))

    @property
    def _finds_largest(self) -> bool:
        from opforge.formula.graph import cone

        return any(v.op == "amax" for v in cone([o.value for o in self.graph.outputs]))

    def _op(self) -> str:
        code = [
            "op = Op(",
            f"    schema={self._schema_text()},",
            f"    reference={self._reference()},",
        ]
        if self.forward is None:
            code += [
                f"    composed={self._reference()},",
                f"    backward=by_autograd(SCHEMA, {self._reference()}),",
            ]
        if self.backward is not None:
            code += [
                "    backward=Backward(",
                f"        {lines.string(self.backward.schema, 8)},",
                "        backward_reference,",
                "    ),",
            ]
        if self.dtypes:
            code.append(f"    dtypes=({', '.join(f'torch.{d}' for d in self.dtypes)},),")
        if self._validate():
            code.append("    validate=validate,")
        code.append("    cases=cases,")
        if self.forward is not None:
            x = self._like.name
            code.append(f"    operations=lambda {x}: {self.operations} * {x}.numel(),")
            kinds = {k.kind for k in self.forward.grouping.kernels}
            same = all(self._kind(t) == "whole" for t in self.graph.tensors)
            if kinds == {"elements"} and same:
                code.append("    pointwise=True,")
            elif (
                kinds | {k.kind for k in self.backward.grouping.kernels}
                if self.backward
                else kinds | {"rows"}
            ) & {"rows", "columns"}:
                code.append("    rowwise=True,")
        else:
            code.append("    rowwise=True,")
        code.append(f"    sized=lambda make, *shape: {self._sized()},")
        return "\n".join([*code, ")", ""])

    def _sized(self) -> str:
        case = self._case("", 0)
        return case if case.startswith("(") and case.endswith(",)") else f"({case})"

    @property
    def schema(self) -> str:
        """The forward's schema."""
        return self.forward.schema if self.forward else self._plain_schema()

    def _schema_text(self) -> str:
        return lines.string(self.schema, 4, len("schema=")) if self.forward else "SCHEMA"

    def _plain_schema(self) -> str:
        kinds = ", ".join(
            f"{'Tensor' if i.is_tensor else 'float'} {i.name}" for i in self.graph.inputs
        )
        made = ", ".join(f"Tensor {o.name}" for o in self.graph.outputs)
        return f"{self.name}({kinds}) -> {made if len(self.graph.outputs) == 1 else f'({made})'}"

    def _reference(self) -> str:
        fixed = self.example.fixed
        if not fixed:
            return "reference"
        names = [i.name for i in self.graph.inputs]
        given = [f"{n}={n}" for n in names] + [f"{n}={v!r}" for n, v in fixed.items()]
        return f"lambda {', '.join(names)}: reference({', '.join(given)})"

    def _public(self) -> str:
        defaults = {p.name: p.default for p in self.source.parameters if p.has_default}
        params = []
        for argument in self.graph.inputs:
            kind = "Tensor" if argument.is_tensor else "float"
            given = f" = {defaults[argument.name]!r}" if argument.name in defaults else ""
            params.append(f"{argument.name}: {kind}{given}")
        names = ", ".join(i.name for i in self.graph.inputs)
        outputs = self.graph.outputs
        count = len(outputs)
        kind = "Tensor" if count == 1 else f"tuple[{', '.join(['Tensor'] * count)}]"
        made = outputs[0].name if count == 1 else "results"
        head = lines.function(self.name, params, kind)
        doc = (self.source.function.__doc__ or "").strip().split("\n")[0] or "The formula, fused."
        return "\n".join(
            [
                head,
                f'    """{doc}"""',
                f"    {made}: {kind} = op({names})",
                f"    return {made}",
                "",
            ]
        )
