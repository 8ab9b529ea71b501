# SPDX-License-Identifier: Apache-2.0
"""The products that an op makes, and the choices measured for them, as text and as objects."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from opforge.build import cache

_HEAD = "# dtype, majors of a and b, m, n, k; tile, bands of so many rows or columns of tiles\n"


@dataclass(frozen=True)
class Product:
    """A product by what decides on its kernel: dtype and majors, and the three sizes."""

    dtype: str
    majors: str
    m: int
    n: int
    k: int

    def __str__(self) -> str:
        return f"{self.dtype} {self.majors} {self.m} {self.n} {self.k}"

    @property
    def operations(self) -> int:
        """Multiplications and additions."""
        return 2 * self.m * self.n * self.k


@dataclass(frozen=True)
class Choice:
    """A kernel and the order of its tiles: bands of ``group`` rows of tiles, or of columns."""

    tile: str
    group: int = 8
    order: str = "rows"

    def __str__(self) -> str:
        return f"{self.tile} {self.group} {self.order}"


def line(product: Product, choice: Choice) -> str:
    """A line of a table."""
    return f"{product} {choice}\n"


def recorded(text: str) -> dict[Product, list[str]]:
    """The products that a library wrote down, and the tiles it could make each with."""
    found: dict[Product, list[str]] = {}
    for words in (row.split() for row in text.splitlines()):
        found[Product(words[0], words[1], *map(int, words[2:5]))] = words[5:]
    return found


def read(file: Path) -> dict[Product, Choice]:
    """A table, or nothing if there is none. Lines that are no choices are left out."""
    found: dict[Product, Choice] = {}
    for row in file.read_text().splitlines() if file.is_file() else ():
        words = row.split()
        if len(words) == 8 and all(w.isdecimal() for w in (*words[2:5], words[6])):
            m, n, k = map(int, words[2:5])
            product = Product(words[0], words[1], m, n, k)
            found.setdefault(product, Choice(words[5], int(words[6]), words[7]))
    return found


def merge(file: Path, new: Iterable[tuple[Product, Choice]]) -> None:
    """Add choices to a table. They replace older ones of the same products."""
    known = read(file) | dict(new)
    rows = sorted(known.items(), key=lambda item: (item[0].dtype, item[0].majors, str(item[0])))
    file.parent.mkdir(parents=True, exist_ok=True)
    cache.replace_text(file, _HEAD + "".join(line(*row) for row in rows))
