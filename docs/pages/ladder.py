# SPDX-License-Identifier: Apache-2.0
"""What each rung of matmul buys: a table and a picture from its results, for docs/ladder.md."""

from __future__ import annotations

from dataclasses import dataclass

from opforge.bench.results import OURS, Row
from opforge.report import svg

from . import text
from .data import EAGER, Data, provenance
from .gallery import Picture, picture_of, plots_of

OP = "matmul"
_DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True)
class Ladder:
    """The rungs of a dtype at its largest shape, from the lowest to the highest."""

    dtype: str
    shape: tuple[int, ...]
    rungs: dict[str, Row]
    library: Row | None  # eager PyTorch

    @property
    def title(self) -> str:
        """``bfloat16, 8192 × 8192 × 8192``."""
        return f"{self.dtype}, {' × '.join(map(str, self.shape))}"


def part(data: Data) -> str:
    """The generated part of the page."""
    found = ladders(data)
    if not found:
        return "Not measured yet.\n"
    where = provenance(data.of({OP: data.ops[OP]}))
    made = [f"![What each idea buys, in TFLOP/s](gallery/ladder.svg)\n\nMeasured on {where}.\n\n"]
    for ladder in found:
        lines, before = [], None
        for name, row in ladder.rungs.items():
            speed = tflops(row)
            gain = "" if before is None else f"{speed / before:.2f}×"
            share = f"{100 * speed / tflops(ladder.library):.0f}%" if ladder.library else ""
            lines.append((name, f"{speed:.3g}", gain, share))
            before = speed
        heads = (ladder.title, "TFLOP/s", "against the line before", "of eager PyTorch")
        made.append(text.table(heads, lines) + "\n")
    return "".join(made)


def picture(data: Data) -> Picture | None:
    """A bar for each rung."""
    plots = []
    for ladder in ladders(data):
        rows = {**ladder.rungs, **({EAGER: ladder.library} if ladder.library else {})}
        speeds = {name: tflops(row) for name, row in rows.items()}
        bars = [
            svg.Bar(name, speed, f"{speed:.3g} TFLOP/s", svg.colour(int(name == EAGER)))
            for name, speed in speeds.items()
        ]
        least, most = 0.5 * min(speeds.values()), 1.2 * max(speeds.values())
        scale = svg.Scale(least, most, 90.0, svg.NARROW - 110, log=True)
        about = "one bar per rung, on a logarithmic scale"
        marks: tuple[float, ...] = ()
        plots += plots_of(svg.bars([("", bars)], scale, least, ladder.title, about, marks))
    where = provenance(data.of({OP: data.ops[OP]})) if plots else ""
    alt = f"Bars: TFLOP/s of each kernel of matmul on {where}"
    return picture_of("ladder", "What each idea buys", "", alt, plots, {})


def ladders(data: Data) -> list[Ladder]:
    """One for each dtype that has been measured."""
    timed = [r for r in data.results.rows if r.op == OP and r.direction == "forward" and r.us]
    found = []
    for dtype in _DTYPES:
        mine = [r for r in timed if r.dtype == dtype]
        if not mine:
            continue
        shape = max(mine, key=lambda r: r.operations).shape
        rows = [r for r in mine if r.shape == shape]
        rungs = {r.variant: r for r in rows if r.implementation == OURS}
        eager = [r for r in rows if r.implementation == EAGER]
        library = max(eager, key=tflops, default=None)
        if rungs:
            found.append(Ladder(dtype, shape, rungs, library))
    return found


def tflops(row: Row) -> float:
    """10^12 operations per second."""
    assert row.us
    return row.operations / row.us / 1e6
