# SPDX-License-Identifier: Apache-2.0
"""Parses the raw page of Nsight Compute, a CSV with names, units, and a row for each launch."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass

from opforge.errors import ProfileError

_FACTORS = {"": 1.0, "n": 1e-9, "u": 1e-6, "m": 1e-3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
# Units such as "Mbyte", "byte/second", "usecond", or in newer versions "Gbyte/s", "us", "ns".
_UNIT = re.compile(r"([numKMGT]?)(?:byte|second|s|hz|Hz|cycle|inst|sector)(?:/.*)?")


@dataclass(frozen=True)
class Launch:
    """A row: the kernel, its launch configuration, and its metrics in base units."""

    kernel: str
    grid: str
    block: str
    metrics: dict[str, float]  # without those that are not available


def parse(text: str) -> list[Launch]:
    """The launches in the output of ncu. Messages around the table are skipped."""
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID",')), None)
    if start is None:
        return []
    rows = [row for row in csv.reader(_table(lines[start:])) if row]
    names, units = rows[0], rows[1] if len(rows) > 1 else []
    if "Kernel Name" not in names:
        raise ProfileError(
            f"Nsight Compute printed a table without kernel names ({', '.join(names[:6])}…); "
            "opforge does not understand this version of it"
        )
    launches = []
    for row in rows[2:]:
        if len(row) != len(names):
            raise ProfileError(
                f"Nsight Compute printed {len(row)} values for {len(names)} columns in {row[:5]}"
            )
        cells = dict(zip(names, row, strict=True))
        found = {
            name: number
            for name, unit, cell in zip(names, units, row, strict=True)
            if "__" in name and (number := _number(cell, unit)) is not None
        }
        grid, block = (_dims(cells.get(name, "")) for name in ("Grid Size", "Block Size"))
        launches.append(Launch(cells["Kernel Name"], grid, block, found))
    return launches


def _table(lines: list[str]) -> list[str]:
    """The lines of the table, without messages of ncu ("==PROF== …") between them."""
    return [line for line in lines if line.startswith('"')]


def _dims(cell: str) -> str:
    """Convert ``(64, 2, 1)`` to ``64x2``."""
    sizes = [n.strip() for n in cell.strip("()").split(",")]
    while len(sizes) > 1 and sizes[-1] == "1":
        sizes.pop()
    return "x".join(sizes)


def _number(cell: str, unit: str) -> float | None:
    """A value in base units, or None if it is not available."""
    try:
        value = float(cell.replace(",", ""))
    except ValueError:  # "n/a", "(!) n/a", an empty cell
        return None
    if value != value:
        return None
    if unit == "%":
        return value / 100
    match = _UNIT.fullmatch(unit)
    return value * _FACTORS[match[1]] if match else value
