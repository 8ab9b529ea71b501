# SPDX-License-Identifier: Apache-2.0
"""Writes ``opforge/__init__.pyi``, for editors and type checkers.

    python -m opforge.registration.stubs

``import opforge`` imports an op when it is first used, which type checkers cannot follow. The file
is not read at run time.
"""

from __future__ import annotations

import inspect
import json
import textwrap
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch

import opforge
from opforge import discover

FILE = Path(opforge.__file__).with_suffix(".pyi")
COMMAND = "python -m opforge.registration.stubs"
_WIDTH = 100


def text() -> str:
    """The content of the file for the current built-in ops."""
    package: Any = opforge  # Any, because its stub has no private names
    lazy = sorted((module, name) for name, module in package._LAZY.items())
    public = [("opforge", name) for name in sorted(package._MODULES)] + lazy
    names: set[tuple[str, str]] = set()  # names used in signatures, with their modules
    ops = [
        _function(name, discover.load(discover.BUILTIN_FOLDER / name), names)
        for name in discover.builtin_names()
    ]
    imported: dict[str, list[str]] = {}
    for module, name in sorted(names):
        imported.setdefault(module, []).append(name)
    standard = [m for m in imported if m != "torch"]
    blocks = [
        [f"from {module} import {', '.join(imported[module])}" for module in group]
        for group in (standard, ["torch"])
    ]
    blocks.append([f"from {module} import {name} as {name}" for module, name in public])
    blocks.append(["__version__: str"])
    head = f"# SPDX-License-Identifier: Apache-2.0\n# Made by {COMMAND}: not to be edited.\n"
    return "\n".join([head, *("\n".join(block) + "\n" for block in blocks), *ops])


def _function(name: str, function: Callable[..., Any], names: set[tuple[str, str]]) -> str:
    """A function's signature (or overloads) with the first paragraph of its docstring."""
    variants = _variants(inspect.signature(function, eval_str=True))
    if len(variants) > 1:
        names.add(("typing", "overload"))
    mark = "@overload\n" if len(variants) > 1 else ""
    summary = (inspect.getdoc(function) or "").split("\n\n")[0]
    quoted = textwrap.wrap(f'"""{summary}"""', _WIDTH - 4, break_on_hyphens=False)
    body = "".join(f"    {row}\n" for row in quoted)
    return "\n".join(f"{mark}{_header(name, v, names)}\n{body}" for v in variants)


def _variants(signature: inspect.Signature) -> list[inspect.Signature]:
    """The overloads of a function: usually one.

    If it returns a tuple when a residual is given, there are three: without a residual, with one
    by position, and with one by keyword.
    """
    results = typing.get_args(signature.return_annotation)
    parameters = list(signature.parameters.values())
    at = next((i for i, p in enumerate(parameters) if p.name == "residual"), None)
    if at is None or [typing.get_origin(r) for r in results] != [None, tuple]:
        return [signature]
    single, several = results
    before, after = parameters[:at], parameters[at + 1 :]
    residual = parameters[at].replace(annotation=single, default=inspect.Parameter.empty)
    by_position = [p.replace(default=inspect.Parameter.empty) for p in before]
    by_name = residual.replace(kind=inspect.Parameter.KEYWORD_ONLY)
    none = parameters[at].replace(annotation=None)
    return [
        signature.replace(parameters=[*before, none, *after], return_annotation=single),
        signature.replace(parameters=[*by_position, residual, *after], return_annotation=several),
        signature.replace(parameters=[*before, by_name, *after], return_annotation=several),
    ]


def _header(name: str, signature: inspect.Signature, names: set[tuple[str, str]]) -> str:
    parameters: list[str] = []
    for p in signature.parameters.values():
        if p.kind is p.KEYWORD_ONLY and "*" not in parameters:
            parameters.append("*")
        default = "" if p.default is p.empty else f" = {_value(p.default)}"
        parameters.append(f"{p.name}: {_type(p.annotation, names)}{default}")
    result = _type(signature.return_annotation, names)
    line = f"def {name}({', '.join(parameters)}) -> {result}:"
    if len(line) <= _WIDTH:
        return line
    rows = "".join(f"    {p},\n" for p in parameters)
    return f"def {name}(\n{rows}) -> {result}:"


def _type(hint: Any, names: set[tuple[str, str]]) -> str:
    """An annotation as source text, with aliases expanded."""
    if hint in (None, types.NoneType):
        return "None"
    if hint is ...:  # tuple[Tensor, ...]
        return "..."
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " | ".join(_type(a, names) for a in arguments)
    if origin is Literal:
        names.add(("typing", "Literal"))
        return f"Literal[{', '.join(map(_value, arguments))}]"
    of = origin or hint
    if of.__module__ != "builtins":
        names.add((of.__module__, of.__name__))
    inner = f"[{', '.join(_type(a, names) for a in arguments)}]" if arguments else ""
    return f"{of.__name__}{inner}"


def _value(value: Any) -> str:
    if isinstance(value, torch.dtype):
        return "..."
    return json.dumps(value) if isinstance(value, str) else repr(value)


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
