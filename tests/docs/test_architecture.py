# SPDX-License-Identifier: Apache-2.0
"""docs/architecture.md is true: its files exist, its rooms are all there and in order."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import opforge

PACKAGE = Path(opforge.__file__).parent
PAGE = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text()
# The picture: a line of rooms at a level; the words after them have two or more spaces before.
PICTURE = PAGE.split("```")[1]
LEVELS = {
    name.strip("/"): level
    for level, line in enumerate(x for x in PICTURE.splitlines() if "│" not in x)
    for name in re.findall(r"\b[a-z]+(?:/(?=\s)|\.py)|opforge/", line)
}
FREE = {"__init__.py", "__main__.py", "__init__.pyi", "py.typed"}


def test_every_file_that_it_names_is_there():
    named = set(re.findall(r"`([\w/]+(?:\.(?:py|md|cpp|cuh?|h)|/))`", PAGE))
    assert len(named) > 60
    assert [n for n in sorted(named - {"src/opforge/"}) if not (PACKAGE / n).exists()] == []


def test_every_room_is_in_the_picture():
    rooms = {p.name for p in PACKAGE.iterdir() if p.name != "__pycache__"} - FREE
    assert rooms - {"include"} == set(LEVELS) - {"opforge"}


@pytest.mark.parametrize("room", sorted(set(LEVELS) - {"opforge"}))
def test_a_room_imports_none_below_it(room):
    files = [PACKAGE / room] if room.endswith(".py") else (PACKAGE / room).rglob("*.py")
    for file in files:
        for node in ast.parse(file.read_text()).body:  # not what is imported within a function
            for module in _imported(node):
                other = module if f"{module}.py" not in LEVELS else f"{module}.py"
                assert LEVELS.get(other, 0) <= LEVELS[room], f"{file} imports opforge.{module}"


def _imported(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.ImportFrom) and node.module == "opforge":
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("opforge."):
        return [str(node.module).split(".")[1]]
    if isinstance(node, ast.Import):
        return [a.name.split(".")[1] for a in node.names if a.name.startswith("opforge.")]
    return []
