# SPDX-License-Identifier: Apache-2.0
"""The user's function: where it is, its parameters, and what its source calls things."""

from __future__ import annotations

import ast
import functools
import importlib.util
import inspect
import linecache
import sys
import textwrap
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opforge.errors import NewError
from opforge.terminal.words import did_you_mean

_KINDS = {"Tensor": "Tensor", "torch.Tensor": "Tensor", "float": "float", "int": "int"}
_KINDS["bool"] = "bool"


class FormulaError(NewError):
    """A function that no op can be made of. The message begins with the user's line."""


@dataclass(frozen=True)
class Parameter:
    """A parameter of the function. ``kind`` is Tensor, float, int or bool, or "" if unknown."""

    name: str
    kind: str
    default: Any = inspect.Parameter.empty

    @property
    def has_default(self) -> bool:
        """Whether a call may leave it out."""
        return self.default is not inspect.Parameter.empty


@dataclass(frozen=True)
class Statement:
    """A statement of the function: its lines in the file, its text and the name it assigns."""

    first: int
    last: int
    text: str
    name: str


@dataclass
class Source:
    """A function with its text."""

    function: Callable[..., Any]
    file: str
    first: int  # its first line in the file
    lines: list[str]  # of the function alone
    parameters: list[Parameter] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The function's own name."""
        return self.function.__name__

    @property
    def tree(self) -> ast.FunctionDef | ast.Lambda:
        """The function as a syntax tree, whose lines count from 1."""
        module = ast.parse(textwrap.dedent("".join(self.lines)))
        found = (n for n in ast.walk(module) if isinstance(n, (ast.FunctionDef, ast.Lambda)))
        return next(found)

    def error(self, message: str, line: int | None = None) -> FormulaError:
        """An error at one of its lines."""
        return FormulaError(f"{_shown(self.file)}:{line or self.first}: {message}")

    def statement(self, line: int | None) -> Statement | None:
        """The statement that a line of the file belongs to."""
        for found in self.statements:
            if line is not None and found.first <= line <= found.last:
                return found
        return None

    @functools.cached_property
    def statements(self) -> list[Statement]:
        """Its assignments and returns, in order."""
        tree, above = self.tree, self.first - 1
        if isinstance(tree, ast.Lambda):
            last = above + (tree.end_lineno or tree.lineno)
            return [Statement(above + tree.lineno, last, ast.unparse(tree.body), "")]
        found = []
        for node in (n for n in ast.walk(tree) if isinstance(n, (ast.Assign, ast.Return))):
            target = node.targets[0] if isinstance(node, ast.Assign) else None
            name = target.id if isinstance(target, ast.Name) else ""
            last = above + (node.end_lineno or node.lineno)
            found.append(Statement(above + node.lineno, last, ast.unparse(node), name))
        return found

    def returned(self) -> list[str]:
        """The names in its return statement, "" where there is an expression."""
        tree = self.tree
        if isinstance(tree, ast.Lambda):
            value: ast.expr | None = tree.body
        else:
            value = next((n.value for n in ast.walk(tree) if isinstance(n, ast.Return)), None)
        parts = value.elts if isinstance(value, (ast.Tuple, ast.List)) else [value]
        return [p.id if isinstance(p, ast.Name) else "" for p in parts]


def locate(where: str) -> Source:
    """The function of ``file.py:function``."""
    path, _, name = where.rpartition(":")
    if not path or not name.isidentifier():
        raise NewError(f"--from takes FILE:FUNCTION, as in formulas.py:{name or 'softcap'}")
    file = Path(path)
    if not file.is_file():
        raise NewError(f"--from {where}: there is no file {path}")
    module_name = f"_opforge_formula_{file.stem}"
    spec = importlib.util.spec_from_file_location(module_name, file)
    if spec is None or spec.loader is None:
        raise NewError(f"--from {where}: {path} is no Python file; its name must end with .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    sys.path.insert(0, str(file.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # the user's own code raised it
        line = _line_in(error, str(file))
        raise FormulaError(f"{_shown(path)}:{line}: {type(error).__name__}: {error}") from None
    finally:
        sys.path.pop(0)
    functions = [n for n, v in vars(module).items() if inspect.isfunction(v)]
    if not inspect.isfunction(getattr(module, name, None)):
        raise NewError(
            f"--from {where}: {path} has no function {name}{did_you_mean(name, functions)}"
        )
    return of_function(getattr(module, name))


def of_function(function: Callable[..., Any]) -> Source:
    """The source of a function. Raises FormulaError for what cannot be one of an op."""
    if not inspect.isfunction(function):
        kind = type(function).__name__
        raise FormulaError(f"a formula is a function in plain Python, got a {kind}")
    file = function.__code__.co_filename
    linecache.checkcache(file)
    try:
        lines, first = inspect.getsourcelines(function)
    except (OSError, TypeError):
        raise FormulaError(f"the source of {function.__name__} is not in a file") from None
    source = Source(function, file, max(first, 1), lines)
    for parameter in inspect.signature(function).parameters.values():
        source.parameters.append(_parameter(source, parameter))
    return source


def _parameter(source: Source, parameter: inspect.Parameter) -> Parameter:
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        raise source.error(
            f"{source.name} takes *{parameter.name}; an op has a fixed number of arguments: name "
            "each of them"
        )
    annotation = parameter.annotation
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    kind = _KINDS.get(text, "")
    if annotation is not parameter.empty and not kind:
        raise source.error(
            f"{parameter.name} is a {text or annotation}; a formula takes Tensor, float, int and "
            "bool"
        )
    if not kind and parameter.default is not parameter.empty:
        kind = type(parameter.default).__name__
        if kind not in _KINDS:
            raise source.error(
                f"{parameter.name} has the default {parameter.default!r}; a formula takes Tensor, "
                "float, int and bool"
            )
    return Parameter(parameter.name, kind, parameter.default)


def line_of(error: BaseException, source: Source) -> int:
    """The line of the function where an exception came from."""
    return _line_in(error, source.file, source.first, source.first + len(source.lines))


def _line_in(error: BaseException, file: str, first: int = 0, end: int = sys.maxsize) -> int:
    found = first or 1
    for frame in traceback.extract_tb(error.__traceback__):
        if Path(frame.filename) == Path(file) and first <= (frame.lineno or 0) < end:
            found = frame.lineno or found
    if isinstance(error, SyntaxError) and error.lineno:
        found = error.lineno
    return found


def _shown(file: str) -> str:
    path = Path(file)
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except (ValueError, OSError):
        return file
