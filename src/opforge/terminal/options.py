# SPDX-License-Identifier: Apache-2.0
"""Arguments that several commands share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from opforge.op import Op

Ops = Annotated[
    list[str] | None,
    typer.Argument(metavar="OP", help="built-in names or op folders (default: all built-in ops)"),
]


def records_of(names: list[str] | None) -> list[Op]:
    """The records of these ops, without duplicates. Without names, those of all built-in ops."""
    from opforge import discover

    return list(dict.fromkeys(discover.find(name) for name in names or discover.builtin_names()))
