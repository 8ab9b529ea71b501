# SPDX-License-Identifier: Apache-2.0
"""The formulas of tests/formulas, with the shapes of those whose arguments do not tell them."""

from __future__ import annotations

import ast
from pathlib import Path

from opforge.formula import example, source
from opforge.formula.write import folder

PLACE = Path(__file__).parents[1] / "formulas"
# Every other argument is a matrix, or a vector along its columns if its name says so.
EXAMPLES = {
    "bend": "x: 64x32, alpha: 32",
    "gaussian": "x: 64x32, mean: 32",
    "lerp_rows": "x: 64x32, other: 64x32, amount: 64",
    "logistic_growth": "x: 64x32, rate: 32",
    "modulate": "x: 64x32, shift: 32, scale: 32",
    "temperature": "x: 64x32, scale: ()",
    "weight_standard": "x: 64x32, gain: 64",
}
FORMULAS = {
    node.name: file
    for file in sorted(PLACE.glob("*.py"))
    if not file.name.startswith("test_")
    for node in ast.parse(file.read_text()).body
    if isinstance(node, ast.FunctionDef)
}


def write(name: str, into: Path, save: str | None = None) -> folder.Written:
    """What is written for a formula of the suite."""
    found = source.locate(f"{FORMULAS[name]}:{name}")
    return folder.write(name, found, example.resolve(found, EXAMPLES.get(name)), save, into)
