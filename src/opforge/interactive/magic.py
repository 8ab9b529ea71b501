# SPDX-License-Identifier: Apache-2.0
"""The cell magic ``%%opforge``: a cell of C++ becomes an op. ``%load_ext opforge`` turns it on."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from typing import Any, NoReturn

from opforge.errors import RecordError
from opforge.interactive.inline import Request
from opforge.interactive.strings import Cell

_USAGE = (
    "%%opforge SCHEMA --reference FUNCTION [--elementwise | --cuda | --cpu] [--backward FUNCTION], "
    "as in %%opforge softcap(Tensor x, float cap) -> Tensor y --reference formula --elementwise"
)


def load_ipython_extension(shell: Any) -> None:
    """What ``%load_ext opforge`` calls: it adds ``%%opforge``."""

    def opforge(line: str, cell: str) -> None:
        """Make an op of the cell, under the name in its schema. See docs/inline.md."""
        _define(shell, line, cell)

    shell.register_magic_function(opforge, "cell", "opforge")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise RecordError(f"%%opforge: {message}; write {_USAGE}")


def _define(shell: Any, line: str, cell: str) -> None:
    schema, *options = re.split(r"\s(?=--\w)", line, maxsplit=1)
    parser = _Parser(prog="%%opforge", add_help=False)
    kinds = parser.add_mutually_exclusive_group()
    for kind in ("elementwise", "cuda", "cpu"):
        kinds.add_argument(f"--{kind}", dest="kind", action="store_const", const=kind)
    parser.add_argument("--reference", required=True, metavar="FUNCTION")
    parser.add_argument("--backward", metavar="FUNCTION")
    try:
        given = parser.parse_args(shlex.split("".join(options)))
    except ValueError as error:  # a quote without an end
        parser.error(str(error))
    kind = given.kind or "cuda"
    reference = _function(shell, given.reference)
    record = {} if given.backward is None else {"backward": _function(shell, given.backward)}
    # The first line of the cell is the magic's own.
    op = Request(schema.strip(), {kind: cell}, record).define(
        reference, Cell.of(sys._getframe(), 2)
    )
    shell.push({op.name: op})


def _function(shell: Any, name: str) -> Any:
    """What a name means in the notebook."""
    try:
        return eval(name, shell.user_ns)
    except (AttributeError, NameError, SyntaxError) as error:
        raise RecordError(f"%%opforge: {name!r} is no function of the notebook: {error}") from None
