# SPDX-License-Identifier: Apache-2.0
"""For the tests of `opforge report`: made-up but plausible results, and a reader of the page."""

from __future__ import annotations

import random
from html.parser import HTMLParser

from opforge.bench.results import Results, Row
from opforge.check.results import OpReport, Report, Result
from opforge.report.page import page

OPS = {"relu": 1, "scale_bias_relu": 3, "reduce_sum": 1}  # operations per element
SHAPES = [(32768, 1024), (16384, 4096), (8192, 8192), (4096, 50257)]
SWEEP = [(2**k, 4096) for k in range(6, 13)]
SPEED = {"opforge": 0.97, "eager": 0.6, "torch.compile": 0.93, "liger": 0.85}
NASTY = "<script>alert(\"x\")</script> & 'co'"
RUN = {
    "gpu": "NVIDIA H200",
    "cpu": "x86_64, 16 cores",
    "torch": "2.11.0+cu130",
    "date": "2026-11-15 09:48",
    "method": "events around 10 calls, median of 9 turns",
}


def one(op: str = "relu", us: float | None = 100.0, **others: object) -> Row:
    """A row with few figures: 400 MB in the time of a copy at 4 TB/s."""
    plain: dict[str, object] = {
        "direction": "forward",
        "variant": "",
        "dtype": "bfloat16",
        "shape": (8192, 8192),
        "implementation": "opforge",
        "run": "r1",
        "bytes": 400_000_000,
        "operations": 100_000_000,
        "ceilings": {"copy": 100.0},
        "ceiling": "copy",
    }
    return Row(op=op, us=us, **{**plain, **others})  # type: ignore[arg-type]


def some(*rows: Row) -> Results:
    return Results(list(rows), {r.run: {**RUN} for r in rows})


def many(shapes: list[tuple[int, ...]] | None = None, copies: int = 1) -> Results:
    """Every op, pass, dtype, shape and implementation."""
    draw = random.Random(0)
    rows: list[Row] = []
    for op, per_element in [(f"{o}{c or ''}", n) for c in range(copies) for o, n in OPS.items()]:
        for direction in ("forward", "backward"):
            for variant in ("last dim", "all") if op.startswith("reduce") else ("",):
                for dtype, width in (("bfloat16", 2), ("float32", 4)):
                    for shape in shapes or [*SHAPES, *SWEEP]:
                        for name in SPEED:
                            rows.append(
                                _row(
                                    draw,
                                    (op, direction, variant, dtype, shape, name),
                                    width,
                                    per_element,
                                )
                            )
    rows[3].us, rows[3].error = None, f"liger raised {NASTY}"
    rows[8].error = "its result is wrong: error 8.4 where 3e-07 is allowed"
    rows[12].note = "clocks were held down by power"
    return Results(rows, {"20261115-094812-a1b2c3": RUN})


def _row(draw: random.Random, key: tuple, width: int, per_element: int) -> Row:
    op, direction, variant, dtype, shape, name = key
    elements = shape[0] * shape[1]
    moved = elements * width * (1 if op.startswith("reduce") else 2)
    copy = 2.5 + moved / 4.05e6
    share = (
        SPEED[name]
        * draw.uniform(0.9, 1.08)
        * (0.4 if op.startswith("scale") and name == "eager" else 1)
    )
    us = 1.5 + copy / share
    ulp = draw.uniform(0.3, 0.5) * (1 if name == "opforge" else 1.2)
    row = Row(op, direction, variant, dtype, shape, name, "20261115-094812-a1b2c3")
    row.us, row.low, row.high = us, us * 0.995, us * 1.006
    row.spread, row.turns, row.calls, row.host_us = 0.004, 9, 10, draw.uniform(9, 26)
    row.bytes = moved
    row.operations = elements * per_element if direction == "forward" else 0
    row.ceilings, row.ceiling = {"copy": copy}, "copy"
    if op.startswith("reduce"):
        row.ceilings, row.ceiling = {"copy": copy, "read": copy * 0.93}, "read"
    row.extra_bytes, row.saved_bytes = draw.choice([0, elements * width]), elements * width
    row.ulp_max, row.ulp_rms = ulp * 3, ulp
    row.state = {
        "sm_mhz": 1980,
        "memory_mhz": 3201,
        "power_w": 612.4,
        "celsius": 51,
        "held_down_by": "",
    }
    return row


def check(op: str = "relu", outcome: str = "failed", place: str = "cpu") -> Report:
    """A check in which one row is as told and another passed."""
    errors = {"forward": {"max": 2.5, "rms": 0.4, "torch_max": 0.5, "torch_rms": 0.28}}
    results = [
        Result("own-cases", place, "passed", 0.5, errors=errors),
        Result("narrow-gradient", place, outcome, 0.1, f"grad_x: {NASTY}\nsecond line", "print(1)"),
        Result("many-gpus", place, "not run", 0.0, "one GPU"),
    ]
    return Report(
        [OpReport(op, op, results, {place: "CPU kernel"})], {"torch": "2.13", "time": "2026-11-15"}
    )


class Page(HTMLParser):
    """Elements in order, tables by their names, and the words of plots."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.texts: list[tuple[str, str]] = []  # of SVG: classes and words
        self._table: list[list[str]] | None = None
        self._label = ""
        self._words: str | None = None  # the classes of the <text> we are in
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.elements.append((tag, found))
        if tag == "text":
            self._words = found.get("class") or ""
        elif tag == "div":
            self._label = found.get("aria-label") or ""
        elif tag == "table":
            self._table = self.tables.setdefault(self._label, [])
        elif self._table is not None and tag == "tr":
            self._table.append([])
        elif self._table is not None and tag in ("td", "th"):
            self._table[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        if tag == "table":
            self._table = None
        elif tag == "text":
            self._words = None

    def handle_data(self, data: str) -> None:
        if self._words is not None:  # a tooltip comes as words of their own
            self.texts.append((self._words, data))
        if self._table:
            self._table[-1][-1] += data

    def all(self, tag: str, kind: str = "") -> list[dict[str, str | None]]:
        return [a for t, a in self.elements if t == tag and kind in (a.get("class") or "")]


def made(results: Results, *reports: Report) -> Page:
    return Page(page(results, list(reports), "title"))
