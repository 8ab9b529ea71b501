# SPDX-License-Identifier: Apache-2.0
"""The problem: a file with ``Model``, ``get_inputs()`` and ``get_init_inputs()``."""

from __future__ import annotations

import ast
import functools
import io
import tokenize
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from opforge.errors import OpforgeError
from opforge.op import Op, as_result, as_tuple
from opforge.ship.kernelbench.values import default_of

_LARGE = 1 << 28  # bytes of inputs that are not computed with on the CPU
TOLERANCE = 1e-4  # absolute and relative, as KernelBench's for float32


class ProblemError(OpforgeError):
    """A problem is malformed, or the op does not fit it."""


class Problem:
    """A problem's text. ``name`` is for messages."""

    def __init__(self, text: str, name: str) -> None:
        self.text, self.name = text, name
        try:
            tree = ast.parse(text)
        except SyntaxError as error:
            raise ProblemError(f"{name} is not Python: line {error.lineno}: {error.msg}") from None
        found = {n.name: n for n in tree.body if isinstance(n, (ast.ClassDef, ast.FunctionDef))}
        model = found.get("Model")
        inside = model.body if isinstance(model, ast.ClassDef) else []
        methods = {n.name: n for n in inside if isinstance(n, ast.FunctionDef)}
        lacking = [f"{n}()" for n in ("get_inputs", "get_init_inputs") if n not in found]
        lacking += ["class Model with a method forward"] if "forward" not in methods else []
        if lacking:
            raise ProblemError(f"{name} is no problem of KernelBench: it has no {lacking[-1]}")
        self._forward = methods["forward"]
        self.parameters = [a.arg for a in self._forward.args.args[1:]]

    @functools.cached_property
    def scope(self) -> dict[str, Any]:
        """The names of the file, which is run for it."""
        return _run(self.text, self.name)

    @functools.cached_property
    def _shapes(self) -> tuple[Any, list[Any]]:
        """The model and its inputs without memory."""
        try:
            with FakeTensorMode():
                return self.scope["Model"](*self.scope["get_init_inputs"]()), self._inputs()
        except Exception as error:
            raise ProblemError(
                f"the Model of {self.name} cannot be made: {type(error).__name__}: {error}"
            ) from None

    def _inputs(self) -> list[Any]:
        return list(self.scope["get_inputs"]())

    @property
    def model(self) -> Any:
        """An instance of ``Model`` whose tensors have no memory."""
        return self._shapes[0]

    @property
    def dtype(self) -> torch.dtype | None:
        """That of the first input."""
        return next((x.dtype for x in self._shapes[1] if isinstance(x, torch.Tensor)), None)

    def with_forward(self, call: str) -> str:
        """The file with the class ``ModelNew`` instead, whose ``forward`` returns ``call``."""
        try:
            ast.parse(call, mode="eval")
        except SyntaxError as error:
            raise ProblemError(f"--call {call!r} is no Python expression: {error.msg}") from None
        lines = self.text.encode().splitlines(keepends=True)
        body = self._forward.body
        first = body[1] if len(body) > 1 and ast.get_docstring(self._forward) else body[0]
        before = b"".join(lines[: first.lineno - 1]) + lines[first.lineno - 1][: first.col_offset]
        end = body[-1]
        assert end.end_lineno is not None
        after = lines[end.end_lineno - 1][end.end_col_offset :] + b"".join(lines[end.end_lineno :])
        return _renamed((before + f"return {call}".encode() + after).decode())

    def compare(self, op: Op, call: str | None) -> str:
        """Compare ``Model`` with the op's formula in place of the kernels; says what was found."""
        inputs = [x for x in self._shapes[1] if isinstance(x, torch.Tensor)]
        if sum(x.numel() * x.element_size() for x in inputs) > _LARGE:
            return "not compared with Model: the inputs are large"
        if op.name in self.scope:
            raise ProblemError(f"{self.name} has a {op.name} of its own; rename it")
        scope = _run(self.with_forward(call or by_name(op, self)), self.name)
        scope[op.name] = _formula(op)
        found = []
        for names, kind in ((self.scope, "Model"), (scope, "ModelNew")):
            torch.manual_seed(0)
            model = names[kind](*names["get_init_inputs"]()).eval()
            torch.manual_seed(1)
            try:
                with torch.no_grad():
                    found.append(as_tuple(model(*names["get_inputs"]())))
            except Exception as error:
                raise ProblemError(
                    f"{kind} of {self.name} fails: {type(error).__name__}: {error}"
                ) from None
        return _alike(op, *found)


def _alike(op: Op, theirs: tuple[Any, ...], ours: tuple[Any, ...]) -> str:
    shapes = [[tuple(t.shape) for t in some] for some in (theirs, ours)]
    if shapes[0] != shapes[1]:
        raise ProblemError(
            f"Model returns shapes {shapes[0]}, and {op.name} gives {shapes[1]}; "
            "say what forward returns with --call"
        )
    pairs = list(zip(ours, theirs, strict=True))
    if not all(torch.allclose(a, b, TOLERANCE, TOLERANCE, equal_nan=True) for a, b in pairs):
        worst = max(float((a.double() - b.double()).abs().max()) for a, b in pairs)
        raise ProblemError(
            f"Model computes something else than {op.name}: the results differ by up to "
            f"{worst:.3g}; say what forward returns with --call"
        )
    return f"the formula of {op.name} gives what Model gives, within {TOLERANCE:g}"


def by_name(op: Op, problem: Problem) -> str:
    """A call of the op in which each argument is an input or an attribute of the same name."""
    given = {}
    for argument in op.forward.args:
        if argument.name in problem.parameters:
            given[argument.name] = argument.name
        elif hasattr(problem.model, argument.name):
            given[argument.name] = f"self.{argument.name}"
    required = [a.name for a in op.forward.args if a.type == "Tensor"]
    unknown = [p for p in problem.parameters if p not in given]
    missing = [name for name in required if name not in given]
    if unknown or missing:
        why = f"forward takes {unknown[0]!r}" if unknown else f"Model has no {missing[0]!r}"
        example = ", ".join(given.get(name, "…") for name in required)
        raise ProblemError(
            f"the arguments of {op.name} ({', '.join(a.name for a in op.forward.args)}) are not "
            f"all in Model: {why}; say what forward returns: --call '{op.name}({example})'"
        )
    result = "[0]" if len(op.outputs) > 1 else ""
    return f"{op.name}({', '.join(f'{name}={value}' for name, value in given.items())}){result}"


def _formula(op: Op) -> Callable[..., Any]:
    def formula(*args: Any, **named: Any) -> Any:
        given = dict(zip((a.name for a in op.forward.args), args, strict=False)) | named
        values = [given[a.name] if a.name in given else default_of(op, a) for a in op.forward.args]
        assert op.reference is not None
        return as_result(as_tuple(op.reference(*values)))

    return formula


def _run(text: str, name: str) -> dict[str, Any]:
    scope: dict[str, Any] = {"__name__": "problem"}
    try:
        exec(compile(text, name, "exec"), scope)
    except Exception as error:
        raise ProblemError(f"{name} cannot be run: {type(error).__name__}: {error}") from None
    return scope


def _renamed(text: str) -> str:
    """``Model`` becomes ``ModelNew``, also in ``super(Model, self)``."""
    lines = text.splitlines(keepends=True)
    before = ""
    found = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME and token.string == "Model" and before != ".":
            found.append(token.start)
        before = token.string
    for row, column in reversed(found):
        line = lines[row - 1]
        lines[row - 1] = line[:column] + "ModelNew" + line[column + len("Model") :]
    return "".join(lines)
