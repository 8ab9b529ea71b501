# SPDX-License-Identifier: Apache-2.0
"""What ``opforge new`` is asked for: a name, a kind and a schema, all checked."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePath

from opforge import discover
from opforge.errors import NewError, RecordError
from opforge.new.kinds import KINDS, Kind
from opforge.op import Op
from opforge.registration.schema import NAME, Schema, check_name
from opforge.terminal.words import did_you_mean

_LONGEST = 50  # characters of a name: lines of code have several
# "Tensor" must be written so: torch's own parser takes any spelling of a type for a class.
_EXAMPLE = "'{name}(Tensor x, float scale) -> Tensor y'"


@dataclass(frozen=True)
class Request:
    """A new op: its kind and its schema, which has its name."""

    kind: Kind
    schema: Schema

    @property
    def name(self) -> str:
        """The op's name."""
        return self.schema.name


def resolve(name: str, kind: str, schema: str | None) -> Request:
    """Check the words of a command line. Raises NewError with the fix."""
    check_op_name(name)
    if kind not in KINDS:
        known = ", ".join(KINDS)
        raise NewError(f"there is no kind {kind!r}; kinds are {known}{did_you_mean(kind, KINDS)}")
    request = Request(KINDS[kind], _parse(name, schema or KINDS[kind].schema(name)))
    _check_arguments(request)
    return request


def check_op_name(name: str) -> None:
    """Raise NewError unless an op, its folder and its functions can have this name."""
    check_spelling(name, "an op", "opforge new")
    try:
        check_name(name)
    except RecordError as error:
        raise NewError(f"{error}; another name would do, such as {name}_op") from None
    if name in discover.builtin_names():
        # Commands would take the name for the built-in op, and not for the folder.
        raise NewError(
            f"{name!r} is a built-in op, which `opforge check {name}` would mean; choose another "
            f"name, such as my_{name}"
        )


def check_spelling(name: str, what: str, command: str) -> None:
    """Raise NewError unless a name has lower-case letters, digits and single underscores only."""
    last = PurePath(name).name
    if last != name and NAME.match(last):
        raise NewError(
            f"{name!r} is a path; NAME is the {what.split()[-1]}'s name alone, and --into says in "
            f"which folder it goes: {command} {last} --into {PurePath(name).parent}"
        )
    right = _spelt_right(name)
    if right != name or len(name) > _LONGEST:
        instead = f": {right[:_LONGEST]}" if NAME.match(right[:_LONGEST]) else ""
        raise NewError(
            f"{name!r} cannot be the name of {what}; it takes up to {_LONGEST} lower-case letters, "
            f"digits and single underscores, beginning with a letter{instead}"
        )


def _spelt_right(name: str) -> str:
    """The nearest name in lower case with single underscores; the name itself if it is one."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    words = re.sub(r"[^a-z0-9]+", "_", words).strip("_")
    return f"op_{words}" if re.match(r"\d", words) else words


def _parse(name: str, text: str) -> Schema:
    """The schema. Its name must be that of the op, and its arguments' names identifiers."""
    try:
        schema = Op(schema=text, reference=lambda *args: None).forward
        for argument in (*schema.args, *schema.returns):
            check_name(argument.name, f"schema {text!r}: the name")
    except RecordError as error:
        example = _EXAMPLE.format(name=name)
        hint = "" if "->" in text and "(" in text else f"; write it as {example}"
        raise NewError(f"{error}{hint}") from None
    if schema.name != name:
        raise NewError(
            f"the schema names the op {schema.name!r}, but NAME is {name!r}; give both the same "
            f"name, as in: opforge new {name} --schema {schema.under(name)!r}"
        )
    return schema


def _check_arguments(request: Request) -> None:
    """Raise NewError for arguments that the kind's templates cannot take."""
    kind, schema = request.kind, request.schema
    limits = f"the kind {kind.name} takes {kind.limits}"
    wider = "" if kind.optional else "; the kinds composed and blank also take Tensor?"
    for argument in schema.args:
        known = ("Tensor", "float", "int", "bool", *(["Tensor?"] if kind.optional else []))
        if argument.type not in known:
            hint = wider if argument.type == "Tensor?" else "; add it to the record afterwards"
            raise NewError(f"{argument.type} {argument.name}: {limits}{hint}")
    count = sum(a.type == "Tensor" for a in schema.args)
    if kind.tensors and count != kind.tensors:
        raise NewError(f"{schema.text!r} has {count} tensors: {limits}")
    if len(schema.returns) != 1 or schema.returns[0].type != "Tensor":
        raise NewError(f"{schema.text!r}: {limits}; add other outputs to the record afterwards")
    types = {a.name: a.type for a in schema.args}
    if types.get("eps", "float") != "float":
        raise NewError(
            f"{schema.text!r}: eps is an epsilon to opforge; make it a float, or rename it"
        )
    if {"p", "seed"} <= set(types):
        raise NewError(
            f"{schema.text!r}: p and seed are those of a random mask to opforge, and no kind has "
            "one; rename one of them, or begin with a copy of the built-in op dropout"
        )
    if schema.args[0].type != "Tensor":
        raise NewError(f"{schema.text!r}: the first argument must be a Tensor, as in (Tensor x, …)")
