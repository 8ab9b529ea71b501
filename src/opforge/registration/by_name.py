# SPDX-License-Identifier: Apache-2.0
"""Passes the functions of a record the arguments that their parameters name.

The signature is inspected once. The wrapper takes all arguments of the schema in order, and costs
one more Python call, about 50 ns.
"""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Callable
from typing import Any

from opforge.errors import RecordError
from opforge.registration.schema import Schema
from opforge.terminal.words import did_you_mean


def by_name(function: Any, schema: Schema, field: str) -> Callable[..., Any]:
    """Wrap ``function`` to take all arguments of ``schema``, in order, and pass on those it names.

    ``**kwargs`` asks for all. A parameter with a default that names no argument keeps its default.
    ``field`` is the field of the record, for error messages.
    """
    where = f"the record of {schema.name}: {field}"
    function = getattr(
        function, "_by_name", function
    )  # already wrapped for another record: unwrap it
    names = [a.name for a in schema.args]
    asked = _asked(function, names, where)
    parameters = [f"_{i}" for i in range(len(names))]
    handed_on = [_pair(n, p) for n, p in zip(names, parameters, strict=True) if n in asked]
    text = f"lambda {', '.join(parameters)}: function({', '.join(handed_on)})"
    made: Callable[..., Any] = eval(text, {"function": function})
    made._by_name = made.__wrapped__ = function  # type: ignore[attr-defined]
    return made


def _pair(name: str, value: str) -> str:
    """Source text that passes an argument by name. The name may be a Python keyword: ``lambda``."""
    return f"**{{{name!r}: {value}}}" if keyword.iskeyword(name) else f"{name}={value}"


def _asked(function: Any, names: list[str], where: str) -> set[str]:
    """The arguments that a function asks for by its parameters."""
    asked = set()
    for parameter in _parameters(function, where):
        if parameter.kind is parameter.VAR_KEYWORD:
            asked.update(names)
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            raise RecordError(
                f"{where} has the parameter {str(parameter)!r}, which cannot be passed by name; "
                f"it may ask for {', '.join(names)}, or for all of them as **kwargs"
            )
        elif parameter.name in names:
            asked.add(parameter.name)
        elif parameter.default is parameter.empty:
            raise RecordError(
                f"{where} asks for {parameter.name!r}, which is not an argument of the schema; "
                f"it may ask for {', '.join(names)}{did_you_mean(parameter.name, names)}"
            )
    return asked


def _parameters(function: Any, where: str) -> list[inspect.Parameter]:
    if not callable(function):
        raise RecordError(f"{where} must be a function, got {function!r}")
    try:
        return list(inspect.signature(function).parameters.values())
    except ValueError:
        raise RecordError(
            f"{where} is {function!r}, whose parameters have no names that Python can see; "
            "put a lambda around it"
        ) from None
