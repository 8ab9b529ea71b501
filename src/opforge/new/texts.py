# SPDX-License-Identifier: Apache-2.0
"""The texts that templates take from a schema: parameters, a formula of all arguments, cases.

The formula is x * x * w * scale for tensors x and w and a number. So every argument counts, the
gradient of x needs x, and a forgotten factor fails the check.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from opforge.new import lines
from opforge.new.lines import WIDTH
from opforge.new.request import Request
from opforge.registration.schema import Arg
from opforge.terminal.words import camel

_PYTHON = {"Tensor": "Tensor", "Tensor?": "Tensor | None"}
_CPP = {"Tensor": "const Tensor& ", "float": "double ", "int": "int64_t ", "bool": "bool "}
# Values of numbers in cases, in turns.
_VALUES = {
    "eps": ("0.5", "0.25", "2.0", "1.0", "0.125"),
    "float": ("0.5", "-1.5", "2.0", "1.0", "0.25"),
    "int": ("2", "3", "-1", "1", "2"),
    "bool": ("True", "False", "True", "False", "True"),
}


@dataclass(frozen=True)
class Number:
    """An argument that is no tensor, as a member of a C++ struct."""

    name: str
    cpp_type: str


@dataclass(frozen=True)
class Gradient:
    """The gradient of a tensor in Python, for the GPU and for vectors of the CPU."""

    arg: str
    formula: str
    cpp_formula: str
    cpu_formula: str
    line_formula: str
    cpp_line_formula: str

    @property
    def Arg(self) -> str:
        """The tensor's name, as a part of a struct's."""
        return camel(self.arg)


class Texts:
    """The texts for one op; templates know it as ``op``."""

    def __init__(self, request: Request) -> None:
        self._args = request.schema.args
        self.name, self.Name = request.name, camel(request.name)
        self.kind, self.schema = request.kind.name, request.schema.text
        self.y = request.schema.returns[0].name
        self.grad = f"grad_{self.y}"
        self.names = [a.name for a in self._args]
        self.tensors = [a.name for a in self._args if a.type == "Tensor"]
        self.optional = [a.name for a in self._args if a.type == "Tensor?"]
        self.x, *self.others = self.tensors
        plain = [a for a in self._args if not a.is_tensor]
        self.numbers = [Number(a.name, _CPP[a.type].strip()) for a in plain]
        self.number_names = [a.name for a in plain]
        self.plural = "s" if len(self.tensors) > 1 else ""
        self._factors = [_factor(a) for a in plain]
        self.operations = len(self._args)

    # Parameters.

    @property
    def params(self) -> list[str]:
        """All parameters in Python."""
        return [f"{a.name}: {_PYTHON.get(a.type, a.type)}" for a in self._args]

    @property
    def tensor_params(self) -> list[str]:
        """The tensors among them."""
        return [f"{a.name}: {_PYTHON[a.type]}" for a in self._args if a.is_tensor]

    @property
    def backward_params(self) -> list[str]:
        """The parameters of the backward in Python."""
        output = [f"{self.y}: Tensor"] if self.kind == "composed" else []
        return [f"{self.grad}: Tensor", *output, *self._kept(self.params)]

    @property
    def cpp_params(self) -> list[str]:
        """All parameters in C++."""
        return [f"{_CPP[a.type]}{a.name}" for a in self._args]

    @property
    def backward_cpp_params(self) -> list[str]:
        """The parameters of the backward in C++."""
        return [f"const Tensor& {self.grad}", *self._kept(self.cpp_params)]

    def _kept(self, params: list[str]) -> list[str]:
        """The parameters that the backward takes, too: for some formulas, numbers alone."""
        alone = self.kind in ("stencil", "composed")
        pairs = zip(params, self._args, strict=True)
        return [p for p, a in pairs if not (alone and a.is_tensor)]

    @property
    def schema_text(self) -> str:
        """The schema as a string of Python, after ``schema=``."""
        return lines.string(self.schema, 4, len("schema="))

    @property
    def backward_schema_text(self) -> str:
        """The schema of the backward as a string of Python."""
        kept = self._kept([f"{a.type} {a.name}" for a in self._args])
        grads = [f"Tensor grad_{t}" for t in self.tensors]
        if self.kind == "composed":
            kept, grads = [f"Tensor {self.y}", *kept], grads[:1]
        returned = grads[0] if len(grads) == 1 else f"({', '.join(grads)})"
        taken = ", ".join([f"Tensor {self.grad}", *kept])
        return lines.string(f"{self.name}_backward({taken}) -> {returned}", 8)

    # The formula.

    @property
    def times(self) -> str:
        """`` * scale`` for the numbers, in Python."""
        return "".join(f" * {p}" for p, _ in self._factors)

    @property
    def cpp_times(self) -> str:
        """The same in C++."""
        return "".join(f" * A({c})" for _, c in self._factors)

    @property
    def factor(self) -> str:
        """The product of the numbers in Python; of none, a quarter."""
        return self.times.removeprefix(" * ") or "0.25"

    @property
    def cpp_factor(self) -> str:
        """The same in C++."""
        return self.cpp_times.removeprefix(" * ") or "A(0.25)"

    @property
    def formula(self) -> str:
        """x * x * w * scale."""
        return " * ".join([self.x, *self.tensors]) + self.times

    @property
    def cpp_formula(self) -> str:
        """The same in C++."""
        return " * ".join([self.x, *self.tensors]) + self.cpp_times

    @property
    def cpu_formula(self) -> str:
        """The same for vectors."""
        return _for_vectors(self.cpp_formula)

    @property
    def line_formula(self) -> str:
        """x * w * scale."""
        return " * ".join(self.tensors) + self.times

    @property
    def cpp_line_formula(self) -> str:
        """The same in C++."""
        return " * ".join(self.tensors) + self.cpp_times

    @property
    def passed(self) -> str:
        """What the gradient of the line formula is for x."""
        return " * ".join([self.grad, *self.others]) + self.times

    @property
    def cpp_passed(self) -> str:
        """The same in C++."""
        return " * ".join([self.grad, *self.others]) + self.cpp_times

    def start(self, sign: str) -> str:
        """Statements that multiply (or add up) all tensors, of which some may be None."""
        if self.started == self.x:
            return ""
        code = [f"total = {f' {sign} '.join(self.tensors)}"]
        for name in self.optional:
            code += [f"if {name} is not None:", f"    total = total {sign} {name}"]
        return "\n".join(f"    {line}" for line in code)

    @property
    def started(self) -> str:
        """What those statements end with."""
        return "total" if self.others or self.optional else self.x

    @property
    def shared(self) -> str:
        """The tensors whose gradient is that of x, as an argument of Backward."""
        others = [*self.others, *self.optional]
        return ", ".join(f'"{t}": "grad_{self.x}"' for t in others)

    # Gradients.

    @property
    def gradients(self) -> list[Gradient]:
        """The gradient of each tensor, multiplied in autograd's order: it overflows no sooner."""
        python, cpp = [p for p, _ in self._factors], [f"A({c})" for _, c in self._factors]
        return [self._gradient(i, python[::-1], cpp[::-1]) for i in range(len(self.tensors))]

    def _gradient(self, i: int, python: list[str], cpp: list[str]) -> Gradient:
        name, after = self.tensors[i], self.tensors[:i:-1]
        before = f"({' * '.join([self.x, *self.tensors[:i]])})"
        end, cpp_end = ([before], [before]) if i else ([name, "2"], [name, "A(2)"])
        line = [*after, *self.tensors[:i]]
        cpp_formula = " * ".join([self.grad, *cpp, *after, *cpp_end])
        return Gradient(
            name,
            " * ".join([self.grad, *python, *after, *end]),
            cpp_formula,
            _for_vectors(cpp_formula),
            " * ".join([self.grad, *python, *line]),
            " * ".join([self.grad, *cpp, *line]),
        )

    @property
    def gradient_names(self) -> list[str]:
        """The names of the gradients."""
        return [f"grad_{t}" for t in self.tensors]

    @property
    def gradients_type(self) -> str:
        """The type of the gradients in Python."""
        count = len(self.tensors)
        return "Tensor" if count == 1 else f"tuple[{', '.join(['Tensor'] * count)}]"

    @property
    def gradients_cpp_type(self) -> str:
        """The same in C++."""
        count = len(self.tensors)
        return "Tensor" if count == 1 else f"std::tuple<{', '.join(['Tensor'] * count)}>"

    @property
    def cpp_gradients(self) -> str:
        """The gradients as a function returns them."""
        names = ", ".join(self.gradient_names)
        return names if len(self.tensors) == 1 else f"{{{names}}}"

    def cpp_other_gradients(self, size: str) -> str:
        """The gradients of all but the first tensor, each times ``size``, after a comma."""
        return "".join(f", {g.cpp_line_formula} * {size}" for g in self.gradients[1:])

    def cpp_returned(self, function: str, prefix: str, first: str, last: bool = False) -> str:
        """Returns ``function(GradX{scale}, first, grad, x, w)`` for all tensors."""
        inputs = [*self.tensors, self.grad] if last else [self.grad, *self.tensors]
        members = ", ".join(self.number_names)
        calls = [
            f"{function}({prefix}Grad{g.Arg}{{{members}}}, {first}, {', '.join(inputs)})"
            for g in self.gradients
        ]
        if len(calls) == 1:
            return f"return {calls[0]};"
        return "return {" + ",\n          ".join(calls) + "};"

    # Functions.

    def py_def(self, name: str, params: Sequence[str], returns: str) -> str:
        """The head of a function in Python."""
        return lines.function(name, params, returns)

    def cpp_def(self, returns: str, name: str, params: Sequence[str]) -> str:
        """The head of a function in C++."""
        return f"{returns} {name}({', '.join(params)}) {{"

    def elements(
        self, names: Sequence[str], type: str = "A", only: Sequence[str] | None = None
    ) -> str:
        """Parameters for an element of each of these tensors; names for ``only`` some of them."""
        return ", ".join(type if only and n not in only else f"{type} {n}" for n in names)

    def row_pointers(self, names: Sequence[str]) -> str:
        """Parameters for the beginning of a row of each of these tensors."""
        return ", ".join(f"const T* {n}_row" for n in names)

    def fitting(self, text: str, instead: str) -> str:
        """A text with quotes around it on one line, or a shorter one."""
        return text if len(text) + 10 <= WIDTH else instead

    # Checks and cases.

    def case(self, make: str, turn: int, last: str = "", some: bool = True) -> str:
        """The arguments of a call: ``make`` for each tensor, ``last`` for the last one.

        Without ``some``, tensors that may be None are.
        """
        values = []
        for a in self._args:
            if a.is_tensor:
                final = last if last and a.name == self.tensors[-1] else make
                values.append(final if some or a.type == "Tensor" else "None")
            else:
                values.append(_VALUES["eps" if a.name == "eps" else a.type][turn])
        return f"({values[0]},)" if len(values) == 1 else ", ".join(values)

    def case_tuple(self, make: str, turn: int, last: str = "") -> str:
        """The same in parentheses."""
        text = self.case(make, turn, last)
        return text if len(self._args) == 1 else f"({text})"

    @property
    def eps(self) -> bool:
        """Whether it has an epsilon, which the check wants to be refused below 0."""
        return "eps" in self.names

    def validate(self, words: str, dims: int = 0) -> str:
        """A validate() for tensors of one shape and dtype that have dims."""
        others = [*self.others, *self.optional]
        params = self.tensor_params if others else self.tensor_params[: bool(dims)]
        whole = self.py_def("validate", [*params, *["eps: float"] * self.eps], "None")
        parts = [
            f'{whole}\n    """{words}"""',
            self._dims(dims),
            self._same(others),
            self.eps_check,
        ]
        return "\n".join(part for part in parts if part)

    @property
    def eps_check(self) -> str:
        """Statements that refuse a bad epsilon, if there is one."""
        text = f'f"{self.name}: eps must be positive, got {{eps}}"'
        code = ["    if not eps > 0:", *lines.raises(8, "ValueError", text)]
        return "\n".join(code) if self.eps else ""

    def _dims(self, dims: int) -> str:
        if not dims:
            return ""
        asked = "one dim" if dims == 1 else f"{dims} dims"
        test = f"{self.x}.dim() < {dims}" if dims > 1 else f"{self.x}.dim() == 0"
        shape = f"{{tuple({self.x}.shape)}}"
        text = f'f"{self.name}: {self.x} must have at least {asked}; got shape {shape}"'
        return "\n".join([f"    if {test}:", *lines.raises(8, "ValueError", text)])

    def _same(self, others: list[str]) -> str:
        if not others:
            return ""
        x = self.x
        pairs = ", ".join(f'("{t}", {t})' for t in others)
        there = "other is not None and " if self.optional else ""
        shape = f'f"{self.name}: {{name}} must have the shape of {x}, {{tuple({x}.shape)}}; "'
        dtype = f"{self.name}: {x} is {{{x}.dtype}} but {{name}} is {{other.dtype}}; convert one"
        code = [
            f"    for name, other in ({pairs}{',' if len(others) == 1 else ''}):",
            f"        if {there}other.shape != {x}.shape:",
            *lines.raises(12, "ValueError", shape, 'f"got {tuple(other.shape)}"'),
            f"        if {there}other.dtype != {x}.dtype:",
            *lines.raises(12, "TypeError", f'f"{dtype}"'),
        ]
        return "\n".join(code)


def _factor(arg: Arg) -> tuple[str, str]:
    """A number as a factor in Python, and in C++ before it is converted."""
    if arg.type == "bool":
        return f"(2 if {arg.name} else 1)", f"{arg.name} ? 2 : 1"
    return arg.name, arg.name


def _for_vectors(formula: str) -> str:
    """A formula of C++ for vectors of the CPU, where A is the type of a lane."""
    return formula.replace("A(", "A<V>(")
