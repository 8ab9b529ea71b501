# SPDX-License-Identifier: Apache-2.0
"""Where the sources of an op come from, if they were strings in a script or a notebook.

The note lies beside them and is no part of the op: a string that moves in its script is not
compiled again. What compilers and the simulator say of the sources is said of the script instead.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from opforge.build import cache

_NOTE = "origins.json"


@dataclass(frozen=True)
class Origin:
    """Lines of a source, counted from 1, and where they were written."""

    source: str  # the file in the op's folder
    first: int
    count: int
    file: str  # the script, or the cell
    line: int
    step: int = 1  # 0: all of them are one line of the script
    columns: bool = True  # whether columns are the same


def keep(folder: Path, origins: list[Origin]) -> None:
    """Write the note, in place of an older one."""
    cache.replace_text(folder / _NOTE, json.dumps([asdict(o) for o in origins]))


def translate(said: str, folder: Path) -> str:
    """What was said of the sources, with the places of the script in place of those in the folder.

    A compiler names the path of a source, the simulator only its name.
    """
    try:
        origins = [Origin(**o) for o in json.loads((folder / _NOTE).read_text())]
    except (OSError, ValueError, TypeError):  # most ops have none
        return said
    for name in dict.fromkeys(o.source for o in origins):
        mine = [o for o in origins if o.source == name]
        path = rf"(?:{re.escape(str(folder))}/|(?<![\w/.-])){re.escape(name)}"
        place = re.compile(path + r"(?::(\d+)(?::(\d+))?|\((\d+)\))")
        said = place.sub(lambda match, mine=mine: _written(match, mine), said)  # type: ignore[misc]
    return said


def _written(match: re.Match[str], origins: list[Origin]) -> str:
    line = int(match[1] or match[3])
    for o in origins:
        if o.first <= line < o.first + o.count:
            column = f":{match[2]}" if match[2] and o.columns else ""
            return f"{o.file}:{o.line + o.step * (line - o.first)}{column}"
    return match[0]
