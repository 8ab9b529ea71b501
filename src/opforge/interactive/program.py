# SPDX-License-Identifier: Apache-2.0
"""Writes a record that was made in a script or a notebook as an ``op.py``.

``opforge check`` and others run an op in processes of their own, which cannot see the functions of
this one. The program has copies of them, with the imports, numbers and functions that they use.
"""

from __future__ import annotations

import ast
import builtins
import dis
import importlib
import inspect
import linecache
import math
import sys
import sysconfig
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from opforge.op import Backward, Build, Op, PackageHeaders

# Where functions without a Python source are looked up by name.
_HOMES = ("torch", "torch.nn.functional", "math", "operator", "opforge")


class Unwritable(Exception):
    """A value that a program cannot have a copy of. The text says which, and what to do."""


def write(record: Mapping[str, Any]) -> str:
    """The ``op.py`` of a record, from the arguments of its ``Op``. May raise Unwritable."""
    program = _Program()
    given = [f"    {name}={program.value(v, name)},\n" for name, v in record.items()]
    return program.text() + f"\nop = Op(\n{''.join(given)})\n"


def refusal(op: str, reason: str) -> str:
    """The ``op.py`` of an op that another process cannot make."""
    text = f"{op} was made by opforge.inline in another process and cannot be made here: {reason}"
    return f"from opforge.errors import RecordError\n\nraise RecordError({text!r})\n"


def copy(function: Callable[..., Any]) -> tuple[list[str], list[str]]:
    """The imports and the statements of a program with a copy of a function. May raise Unwritable.

    The function is the last statement, under its own name.
    """
    program = _Program()
    program.value(function, function.__name__)
    return program.imports(), program.statements()


class _Program:
    def __init__(self) -> None:
        # The lines of imports, and what goes before what.
        self._imports = {"from __future__ import annotations": 0, "from opforge import Op": 3}
        self._statements: list[str] = []
        self._bound: dict[str, Any] = {"Op": Op, "op": None}  # what names mean in the end
        self._written: dict[int, str] = {}  # functions by id -> their names

    def text(self) -> str:
        return "\n".join([*self.imports(), "", *self._statements])

    def imports(self) -> list[str]:
        """Its imports, in order."""
        return sorted(self._imports, key=lambda line: (self._imports[line], line))

    def statements(self) -> list[str]:
        """What follows them."""
        return self._statements

    def value(self, value: Any, hint: str) -> str:
        """Source text for a value. Functions get a statement of their own, named like ``hint``."""
        if isinstance(value, float) and not math.isfinite(value):
            return f"float({str(value)!r})"
        if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
            return repr(value)
        if isinstance(value, torch.dtype):
            self._bind("torch", torch)
            return repr(value)
        if isinstance(value, tuple):
            return f"({''.join(f'{self.value(v, hint)}, ' for v in value).rstrip()})"
        if isinstance(value, list):
            return f"[{', '.join(self.value(v, hint) for v in value)}]"
        if isinstance(value, dict):
            pairs = [f"{self.value(k, hint)}: {self.value(v, hint)}" for k, v in value.items()]
            return f"{{{', '.join(pairs)}}}"
        if isinstance(value, (Backward, Build, PackageHeaders)):
            return self._dataclass(value, hint)
        if isinstance(value, Op) and value.folder is not None:
            self._bind("opforge", importlib.import_module("opforge"))
            return f"opforge.load({str(value.folder)!r}).__call__"  # the module has one record
        if callable(value):
            return self._function(value, hint)
        raise Unwritable(
            f"{hint} is a {type(value).__name__}, and only numbers, strings, dtypes, functions, "
            "modules and lists of these are copied; make it in the function itself"
        )

    def _dataclass(self, value: Any, hint: str) -> str:
        name = type(value).__name__
        self._imports[f"from opforge import {name}"] = 3
        given = {f.name: getattr(value, f.name) for f in fields(value)}
        texts = [f"{k}={self.value(v, hint)}" for k, v in given.items() if v]  # not the defaults
        return f"{name}({', '.join(texts)})"

    def _bind(self, name: str, value: Any) -> None:
        """Give a name its meaning in the program."""
        if name in self._bound:
            if self._bound[name] is not value:
                raise Unwritable(f"{name} has two meanings in its functions; rename one")
            return
        self._bound[name] = value
        if isinstance(value, types.ModuleType):
            self._import(value, name)
            return
        if home := _home(value):
            module, attribute = home
            renamed = "" if attribute == name else f" as {name}"
            self._imports[f"from {module} import {attribute}{renamed}"] = 3
            return
        text = self.value(value, name)
        if text != name:  # a function has written itself under its name
            self._statements.append(f"{name} = {text}\n")

    def _import(self, module: types.ModuleType, name: str) -> None:
        entry = _entry(module)
        if entry is None:
            raise Unwritable(f"{name} is a module that another process cannot import")
        if not _is_installed(module):
            self._imports["import sys"] = 1
            self._imports[f"sys.path.append({entry!r})"] = 2
        renamed = "" if module.__name__ == name else f" as {name}"
        self._imports[f"import {module.__name__}{renamed}"] = 3

    def _function(self, function: Callable[..., Any], hint: str) -> str:
        """Copy a function with what it uses, or import it. Returns its name in the program."""
        if id(function) in self._written:
            return self._written[id(function)]
        home = _home(function)
        if home is None and not isinstance(function, types.FunctionType):
            raise Unwritable(f"{hint} is a {type(function).__name__}; put a lambda around it")
        wanted = home[1] if home else getattr(function, "__name__", hint)
        name = f"_{hint}" if wanted == "<lambda>" else wanted
        while name in self._bound and self._bound[name] is not function:
            name += "_"
        self._written[id(function)] = name
        if home:
            self._bind(name, function)
            return name
        self._bound[name] = function
        node, lines = _find(function, hint)
        for used, value in _used(function, node):
            if value is not function or used != name:
                self._bind(used, value)
        self._statements.append(_source(node, lines, name))
        return name


def _entry(module: types.ModuleType) -> str | None:
    """The entry of sys.path that a module is imported from: "" if it needs none, None without."""
    file = getattr(module, "__file__", None)
    if file is None or module.__name__ == "__main__":
        return "" if module.__name__ in sys.builtin_module_names else None
    root = Path(file).resolve().with_suffix("")
    steps = module.__name__.count(".") + 1 + (root.name == "__init__")
    root = root.parents[steps - 1]
    return str(root) if root in {Path(p).resolve() for p in sys.path} else None


def _is_installed(module: types.ModuleType) -> bool:
    """Whether a module is Python's, of an installed package or opforge's own."""
    entry = _entry(module)
    if entry is None or module.__name__.partition(".")[0] == "opforge":
        return entry is not None
    standard = Path(sysconfig.get_path("stdlib")).resolve()
    packages = {"site-packages", "dist-packages"}
    return (
        not entry or Path(entry).is_relative_to(standard) or bool(packages & {*Path(entry).parts})
    )


def _home(value: Any) -> tuple[str, str] | None:
    """The module and the name that a function or a class can be imported by, or None.

    Importing a script would run it, so what is not installed is copied.
    """
    name = getattr(value, "__name__", None)
    if not isinstance(name, str) or isinstance(value, (types.MethodType, Op)):
        return None
    for home in (getattr(value, "__module__", None) or "", *_HOMES):
        module = sys.modules.get(home)
        if module and getattr(module, name, None) is value and _is_installed(module):
            return home, name
    return None


def _find(function: Any, hint: str) -> tuple[ast.FunctionDef | ast.Lambda, list[str]]:
    """The syntax tree of a function, and the lines of the file or cell that it is in."""
    code = function.__code__
    lines = linecache.getlines(code.co_filename)
    try:
        flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        tree: Any = compile("".join(lines), code.co_filename, "exec", flags)
    except SyntaxError:
        lines = []
    if not lines:
        raise Unwritable(f"the source of {hint} is not in a file; write it to one")
    kinds = ast.Lambda if code.co_name == "<lambda>" else ast.FunctionDef
    names = list(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, kinds)
        and _first_line(node) == code.co_firstlineno
        and [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
        == names
        and _holds(node, code)
    ]
    if len(found) != 1:
        raise Unwritable(
            f"the source of {hint} cannot be told from {code.co_filename}:{code.co_firstlineno}; "
            "write it on a line of its own"
        )
    return found[0], lines


def _first_line(node: ast.FunctionDef | ast.Lambda) -> int:
    decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
    return min([node.lineno, *(d.lineno for d in decorators)])


def _holds(node: ast.FunctionDef | ast.Lambda, code: types.CodeType) -> bool:
    """Whether a lambda has all instructions of the code. Python tells columns from 3.11 on."""
    if not isinstance(node, ast.Lambda) or not hasattr(code, "co_positions"):
        return True
    body: Any = node.body
    begin, end = (body.lineno, body.col_offset), (body.end_lineno, body.end_col_offset)
    places = [p for p in code.co_positions() if None not in p and p[2] != p[3]]
    return all(begin <= (a, c) and (b, d) <= end for a, b, c, d in places)


def _used(function: Any, node: ast.FunctionDef | ast.Lambda) -> Iterator[tuple[str, Any]]:
    """The names that a function uses from outside of itself, with their values."""
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:
            raise Unwritable(f"{name} has no value yet") from None
    defaults = [d for d in (*node.args.defaults, *node.args.kw_defaults) if d is not None]
    inside = {n.id for d in defaults for n in ast.walk(d) if isinstance(n, ast.Name)}
    given = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    same = {d.id: v for d, v in zip(defaults, given, strict=True) if isinstance(d, ast.Name)}
    scope = function.__globals__
    for name in sorted(inside | set(_globals_of(code))):
        if name in same or name in scope:
            yield name, same.get(name, scope.get(name))
        elif name in inside and not hasattr(builtins, name):
            raise Unwritable(f"a default uses {name}, a local variable; use it in the body instead")


def _globals_of(code: types.CodeType) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield instruction.argval
    for inner in code.co_consts:
        if inspect.iscode(inner):
            yield from _globals_of(inner)


def _source(node: ast.FunctionDef | ast.Lambda, lines: list[str], name: str) -> str:
    """A statement that defines the function under a name, without its decorators."""
    assert node.end_lineno is not None
    if isinstance(node, ast.Lambda):
        return f"{name} = (\n    {ast.get_source_segment(''.join(lines), node)}\n)\n"
    text = textwrap.dedent("".join(lines[node.lineno - 1 : node.end_lineno])).rstrip() + "\n"
    return text if node.name == name else f"{text}{name} = {node.name}\n"
