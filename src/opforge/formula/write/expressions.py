# SPDX-License-Identifier: Apache-2.0
"""Values as expressions and statements of a language: C++ in kernels, Python in records.

What is used once stands where it is used, unless the user's source names it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from opforge.formula.graph import ARITHMETIC, COMPARISONS, LOGIC, Value, cone
from opforge.formula.source import Source

_STRENGTH = {"mul": 4, "div": 4, "add": 3, "sub": 3, **dict.fromkeys(COMPARISONS, 2)}
_STRENGTH |= {"and": 1, "or": 1}
_WEAK, _UNARY, _CALL = 0, 5, 6
# What a value without a name of the user's is called.
_NOUNS = {
    "add": "total", "sub": "difference", "mul": "product", "div": "ratio", "exp": "power",
    "tanh": "t", "sigmoid": "gate", "sqrt": "root", "rsqrt": "scale", "where": "chosen",
    "neg": "negative", "abs": "size", "log": "logarithm", "maximum": "above", "minimum": "below",
    "amax": "largest", "erf": "e", "not": "other",
    **dict.fromkeys((*COMPARISONS, *LOGIC), "mask"),
}  # fmt: skip


@dataclass
class Language:
    """How a language writes what is not the same in both."""

    number: Callable[[str], str]  # a number that is known before, where its type matters
    function: Callable[[str], str]  # the name of a function
    where: Callable[[str, str, str], str]
    statement: Callable[[str, str, bool], str]  # name, expression, whether it is a mask
    size: Callable[[Value], str]
    comment: str
    power: Callable[[str, str], str]
    negate_mask: Callable[[str], str]
    reduce: Callable[[Value, str], str] | None = None
    with_numbers: Mapping[str, str] = field(default_factory=dict)  # functions of x and a number
    plain_numbers: bool = False  # whether a number may stand anywhere as it is


@dataclass
class Writer:
    """Writes values. ``names``: those that are there, by the expression that reads them."""

    language: Language
    names: Mapping[Value, str]
    taken: set[str] = field(default_factory=set)
    lines: list[str] = field(default_factory=list)
    _written: dict[Value, str] = field(default_factory=dict)
    _uses: dict[Value, int] = field(default_factory=dict)

    def write(self, targets: Iterable[Value], keep: Iterable[Value] = ()) -> list[str]:
        """The expressions of values, after the statements in ``lines`` that they need.

        Those in ``keep`` stay part of the last expression even if the user's source names them.
        """
        targets = list(targets)
        values = cone(targets, self.names)
        for value in values:
            if value not in self.names:
                for argument in value.args:
                    self._uses[argument] = self._uses.get(argument, 0) + 1
        for target in targets:
            self._uses[target] = self._uses.get(target, 0) + 1
        last = set(targets) | set(keep)
        for value in values:
            if value in self.names or value.on_host or not value.args:
                continue
            used = self._uses[value]
            named = bool(value.name) and value not in last
            if (used > 1 or named) and not (value.op == "neg" and value.args[0] in self.names):
                self._state(value)
        return [self.expression(t, _WEAK)[0] for t in targets]

    def _state(self, value: Value) -> None:
        text = self.expression(value, _WEAK)[0]
        name = self._free(value.name or _NOUNS.get(value.op, value.op))
        self.lines.append(self.language.statement(name, text, value.is_bool))
        self._written[value] = name

    def _free(self, name: str) -> str:
        count, choice = 2, name
        while choice in self.taken:
            choice, count = f"{name}{count}", count + 1
        self.taken.add(choice)
        return choice

    def expression(self, value: Value, strength: int, right: bool = False) -> tuple[str, int]:
        """A value where operators of this strength are around it, in brackets if needed."""
        text, own = self._expression(value)
        if own < strength or (own == strength and right):
            return f"({text})", _CALL
        return text, own

    def _expression(self, value: Value) -> tuple[str, int]:
        if value in self._written:
            return self._written[value], _CALL
        if value in self.names:
            return self.names[value], _CALL
        if value.on_host:
            return self._host(value)
        language, op = self.language, value.op
        if op in ARITHMETIC:
            return self._binary(value, ARITHMETIC[op])
        if op in COMPARISONS:
            return self._binary(value, COMPARISONS[op])
        if op in LOGIC:
            parts = [f"({self.expression(a, _WEAK)[0]})" for a in value.args]
            return f" {LOGIC[op]} ".join(parts), _STRENGTH[op]
        if op == "not":
            return language.negate_mask(self.expression(value.args[0], _WEAK)[0]), _CALL
        if op == "neg":
            return f"-{self.expression(value.args[0], _UNARY)[0]}", _UNARY
        if op == "where":
            mask, a, b = value.args
            parts = [self.expression(mask, _WEAK)[0], self._typed(a), self._typed(b)]
            return language.where(*parts), _CALL if language.plain_numbers else _WEAK
        if op == "pow":
            return language.power(*map(self._typed, value.args)), _CALL
        if language.reduce is not None and op in ("sum", "amax"):
            return language.reduce(value, self.expression(value.args[0], _WEAK)[0]), _CALL
        if op in language.with_numbers and any(a.on_host for a in value.args):
            x, number = (self._typed(a) for a in sorted(value.args, key=lambda a: a.on_host))
            return language.with_numbers[op].format(x=x, number=number), _CALL
        arguments = ", ".join(self._typed(a) for a in value.args)
        return f"{language.function(op)}({arguments})", _CALL

    def _binary(self, value: Value, sign: str) -> tuple[str, int]:
        strength = _STRENGTH[value.op]
        a, b = value.args
        left = self._side(a, strength, False)
        # a - (b - c) and a / (b * c) need their brackets; a + (b + c) keeps its order of additions.
        return f"{left} {sign} {self._side(b, strength, True)}", strength

    def _side(self, value: Value, strength: int, right: bool) -> str:
        if value.op == "constant" and value.number.is_integer() and abs(value.number) < 2**24:
            text = repr(int(value.number))
            return f"({text})" if right and text.startswith("-") else text
        return self.expression(value, strength, right)[0]

    def _typed(self, value: Value) -> str:
        """An argument of a function: a number has the type of the others."""
        return self.expression(value, _WEAK)[0]

    def _host(self, value: Value) -> tuple[str, int]:
        if self.language.plain_numbers:
            return host_expression(value, self.language.size, in_python=True)
        text, _ = host_expression(value, self.language.size)
        return self.language.number(text), _CALL


def host_expression(
    value: Value, size: Callable[[Value], str], in_python: bool = False
) -> tuple[str, int]:
    """A number that is known before the kernel, in C++ or Python, and how strongly it binds."""
    op = value.op
    if op == "number":
        return value.name, _CALL
    if op == "size":
        return size(value), _CALL
    if op == "constant":
        return constant(value.number, in_python), _CALL if value.number >= 0 else _UNARY
    parts = [host_expression(a, size, in_python) for a in value.args]
    if op == "neg":
        text, own = parts[0]
        return f"-{text if own >= _UNARY else f'({text})'}", _UNARY
    if op in ARITHMETIC:
        own = _STRENGTH[op]
        left, right = parts
        if in_python and op == "div" and value.args[1].op not in ("constant", "number"):
            # Python raises an error where a size is 0; as a tensor, it is Inf or NaN.
            right = (f"torch.tensor({right[0]}, dtype=torch.float64)", _CALL)
        a = left[0] if left[1] >= own else f"({left[0]})"
        b = right[0] if right[1] > own else f"({right[0]})"
        return f"{a} {ARITHMETIC[op]} {b}", own
    if op in ("sqrt", "exp", "log", "pow"):
        return f"{'math.' if in_python else ''}{op}({', '.join(p[0] for p in parts)})", _CALL
    raise NotImplementedError(op)


def constant(number: float, in_python: bool = False) -> str:
    """A number as a language reads it."""
    if in_python and not math.isfinite(number):
        return f"math.{number}".replace("math.-", "-math.")
    if number != number or number in (float("inf"), float("-inf")):
        return {"inf": "INFINITY", "-inf": "-INFINITY"}.get(str(number), "NAN")
    text = repr(number)
    return text.removesuffix(".0") if number.is_integer() and abs(number) < 2**31 else text


def quoted(source: Source, values: Iterable[Value]) -> list[str]:
    """The statements of the user's that values come from, in their order."""
    found = {}
    for value in values:
        statement = source.statement(value.line)
        if statement is not None:
            found[statement.first] = statement
    return [line for _, s in sorted(found.items()) for line in s.text.split("\n")]
