# SPDX-License-Identifier: Apache-2.0
"""What several commands take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from opforge.op import Op

Ops = Annotated[
    list[str] | None,
    typer.Argument(metavar="OP", help="built-in names or op folders; all built-in ops if none"),
]


def records_of(names: list[str] | None) -> list[Op]:
    """The records of these ops, each once; of all built-in ones if there are no names."""
    from opforge import discover

    return list(dict.fromkeys(discover.find(name) for name in names or discover.builtin_names()))
