# SPDX-License-Identifier: Apache-2.0
"""The formula as a graph of values: what :mod:`opforge.formula.capture` makes, and all else reads.

A value varies along axes, which are named after the dims of the arguments: "c" is the last dim of
the largest, the columns. What is stretched, reshaped with ones or permuted is the same value, so
there are no such nodes. Equal values are one object.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

COLUMNS = "c"  # the axis along the last dim; the others are the rows
REDUCTIONS = ("sum", "amax")
COMPARISONS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
LOGIC = {"and": "&", "or": "|"}
ARITHMETIC = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
# Functions of one number that C++ has under the same name.
FUNCTIONS = [
    "abs",
    "exp",
    "exp2",
    "expm1",
    "log",
    "log1p",
    "log2",
    "log10",
    "sqrt",
    "rsqrt",
    "tanh",
    "sigmoid",
    "erf",
    "erfc",
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "floor",
    "ceil",
    "trunc",
    "round",
    "sign",
]


class Unmapped(Exception):
    """Something that no kernel is written for: the reason, and the user's line if it has one."""

    def __init__(self, reason: str, line: int | None = None) -> None:
        super().__init__(reason)
        self.reason, self.line = reason, line


@dataclass(eq=False)
class Value:
    """One value. ``reduced``: the axes that a reduction adds up. ``number``: that of a constant."""

    op: str
    args: tuple[Value, ...] = ()
    axes: frozenset[str] = frozenset()
    is_bool: bool = False
    number: float = 0.0
    reduced: frozenset[str] = frozenset()
    name: str = ""  # of an argument; else what the user's source calls it, or nothing
    line: int | None = None

    @property
    def on_host(self) -> bool:
        """Whether it is known before the kernel runs: made of numbers and sizes alone."""
        if self.op in ("constant", "number", "size"):
            return True
        return bool(self.args) and self.op not in REDUCTIONS and all(a.on_host for a in self.args)


@dataclass
class Input:
    """An argument of the function, as its example gives it."""

    name: str
    value: Value
    dims: tuple[str | None, ...] = ()  # the axis of each dim, None for a dim of size 1
    is_tensor: bool = True


@dataclass
class Output:
    """A result, or a gradient: its value and the axes of its dims."""

    name: str
    value: Value
    dims: tuple[str | None, ...]


@dataclass
class Graph:
    """The formula and its gradients. ``incoming`` has the gradient of each output."""

    inputs: list[Input]
    outputs: list[Output]
    incoming: list[Input]
    gradients: list[Output]
    why_no_kernel: Unmapped | None = None  # then outputs have names only
    why_no_gradient: Unmapped | None = None
    rank: int = 0  # dims of the frame, which is the shape that all tensors broadcast to
    frame: tuple[str, ...] = ()
    any_rank: bool = False  # whether more or fewer leading dims make the same formula

    @property
    def tensors(self) -> list[Input]:
        """The arguments that are tensors."""
        return [i for i in self.inputs if i.is_tensor]

    @property
    def numbers(self) -> list[Input]:
        """The arguments that are numbers."""
        return [i for i in self.inputs if not i.is_tensor]


@dataclass
class Maker:
    """Makes values, each of them once, in their simplest form."""

    line: int | None = None
    _known: dict[tuple[object, ...], Value] = field(default_factory=dict)

    def constant(self, number: float) -> Value:
        """A number that the source has."""
        text = repr(float(number))  # tells -0.0 from 0.0, and NaN is NaN
        return self._once(("constant", text), Value("constant", number=float(number)))

    def size(self, axes: Iterable[str]) -> Value:
        """The product of the sizes of some axes."""
        axes = frozenset(axes)
        return self._once(("size", axes), Value("size", reduced=axes)) if axes else self.constant(1)

    def reduce(self, op: str, x: Value, axes: Iterable[str]) -> Value:
        """A sum or the like over axes. Rows come first: a sum over all is one of sums of rows."""
        axes = frozenset(axes)
        if op == "amin":
            return self.apply("neg", self.reduce("amax", self.apply("neg", x), axes))
        there = axes & x.axes
        if op == "sum" and axes - there:
            x = self.apply("mul", x, self.size(axes - there))
        if COLUMNS in there:
            x = self._reduced(op, x, frozenset({COLUMNS}))
        return self._reduced(op, x, there - {COLUMNS})

    def _reduced(self, op: str, x: Value, axes: frozenset[str]) -> Value:
        if not axes:
            return x
        made = Value(op, (x,), x.axes - axes, reduced=axes, line=self.line)
        return self._once((op, id(x), axes), made)

    def apply(self, op: str, *args: Value) -> Value:
        """A function of single elements."""
        if op not in ("where", "and", "or", "not"):
            one, zero = self.constant(1), self.constant(0)
            args = tuple(self.apply("where", a, one, zero) if a.is_bool else a for a in args)
        if (simple := self._simplified(op, args)) is not None:
            return simple
        axes = frozenset().union(*(a.axes for a in args))
        is_bool = op in COMPARISONS or op in LOGIC or op == "not"
        if op == "where":
            is_bool = args[1].is_bool
        made = Value(op, args, axes, is_bool, line=self.line)
        return self._once((op, *map(id, args)), made)

    def _once(self, key: tuple[object, ...], value: Value) -> Value:
        return self._known.setdefault(key, value)

    def _simplified(self, op: str, args: tuple[Value, ...]) -> Value | None:
        numbers = [a.number if a.op == "constant" else None for a in args]
        if None not in numbers and op in _FOLDED:
            try:
                return self.constant(_FOLDED[op](*numbers))
            except (ArithmeticError, ValueError):
                return None
        x = args[0]
        if op in ("mul", "div") and numbers[-1] == 1 and not x.is_bool:
            return x
        if op == "mul" and numbers[0] == 1 and not args[1].is_bool:
            return args[1]
        if op == "sub" and numbers[0] == 0 and str(numbers[0])[0] != "-" and x is not args[1]:
            return None  # 0 - x is not -x where x is 0
        if op == "neg" and x.op == "neg":
            return x.args[0]
        if op == "pow":
            return self._power(x, numbers[1])
        if op == "where" and args[1] is args[2]:
            return args[1]
        return None

    def _power(self, x: Value, exponent: float | None) -> Value | None:
        if exponent == 1:
            return x
        if exponent == 2:
            return self.apply("mul", x, x)
        if exponent == 3:
            return self.apply("mul", self.apply("mul", x, x), x)
        if exponent == 0.5:
            return self.apply("sqrt", x)
        if exponent == -0.5:
            return self.apply("rsqrt", x)
        if exponent == -1:
            return self.apply("div", self.constant(1), x)
        if exponent == 0:
            return self.constant(1)
        return None


_FOLDED: dict[str, Callable[..., float]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "neg": lambda a: -a,
    "sqrt": math.sqrt,
    "exp": math.exp,
    "log": math.log,
    "pow": lambda a, b: float(a**b),
}


def cone(targets: Iterable[Value], leaves: Iterable[Value] = ()) -> list[Value]:
    """All values that some are made of, each after what it is made of, down to the leaves."""
    stop, found, seen = set(map(id, leaves)), [], set()
    stack: list[tuple[Value, bool]] = [(t, False) for t in reversed(list(targets))]
    while stack:
        value, ready = stack.pop()
        if ready:
            found.append(value)
        elif id(value) not in seen:
            seen.add(id(value))
            stack.append((value, True))
            if id(value) not in stop:
                stack.extend((a, False) for a in reversed(value.args))
    return found


def arguments_of(values: Iterable[Value]) -> Iterator[Value]:
    """The tensors and numbers among values."""
    return (v for v in values if v.op in ("input", "number"))
