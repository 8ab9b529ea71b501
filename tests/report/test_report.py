# SPDX-License-Identifier: Apache-2.0
"""The figures of `opforge report`: what is drawn, compared and counted."""

from __future__ import annotations

import itertools
import math

import pytest
from report_samples import Page, check, made, many, one, some

from opforge.bench.results import Results
from opforge.check.results import OpReport, Report, Result
from opforge.report import roofline, scaling, series, svg
from opforge.report.markup import count, number, percent, ratio
from opforge.report.page import page


def test_every_row_is_in_the_tables_with_its_figures() -> None:
    results = many()
    found = made(results)
    lines = [line for name, t in found.tables.items() if name.startswith("Rows of") for line in t]
    assert len(lines) == len(results.rows) + 3  # three ops with a line of heads each
    row = one(us=125.0, low=124.0, high=126.5, host_us=9.5, extra_bytes=5_000_000, ulp_max=2.0)
    heads, cells = made(some(row)).tables["Rows of relu"]
    got = dict(zip(heads, cells, strict=True))
    assert got["µs (95% interval)"] == "125.0 (124.0 – 126.5)"
    assert got["GB/s"] == "3200"
    assert got["TFLOP/s"] == "0.8000"
    assert got["share of ceiling"] == "80.0%"
    assert (got["host µs"], got["extra MB"], got["ulp max"]) == ("9.50", "5.00", "2.00")


def test_rows_with_errors_stay_and_are_marked() -> None:
    rows = [one(us=None, error="out of memory"), one(op="wrong", us=50.0, error="error 8.4")]
    found = made(some(*rows))
    assert found.tables["Rows of relu"][1][5] == "✗ not timed"
    assert found.tables["Rows of relu"][1][-1] == "✗ out of memory"
    assert found.tables["Rows of wrong"][1][5] == "✗ 50.00"
    assert not found.all("rect")  # nothing of it is drawn or compared
    assert [line[-2] for line in found.tables["At a glance"][1:]] == ["✗ 1", "✗ 1"]


def test_bars_are_as_long_as_the_share() -> None:
    rows = [one(us=100.0), one(us=200.0, implementation="eager"), one(us=80.0, implementation="x")]
    failed = one(us=None, implementation="y", error="no")
    found = made(some(*rows, failed))
    bars = found.all("rect", "b c")
    widths = [float(b["width"] or 0) for b in bars]
    marks = [line["x1"] for line in found.all("line", "axis")][2:4]  # after those of the roofline
    ends = float(bars[0]["x"] or 0), float(bars[0]["x"] or 0) + widths[0]
    assert [float(m or 0) for m in marks] == pytest.approx([96.0, ends[1]], abs=0.1)  # 0 and 100%
    assert ends[0] == 96.0
    assert widths == pytest.approx([widths[0], widths[0] / 2, widths[0] * 1.25], abs=0.1)
    words = [w for _, w in found.texts]
    assert [w for w in words if w.endswith("%")][:3] == ["100.0%", "50.0%", "125.0%"]
    assert "✗ not timed" in words
    assert len({b["class"] for b in bars}) == 3


def test_who_wins() -> None:
    def against(ours: float, other: float, spread: float = 0.001) -> series.Contest:
        rows = [
            one(us=u, low=u * (1 - spread), high=u * (1 + spread), implementation=n)
            for n, u in (("opforge", ours), ("slow", 900.0), ("eager", other))
        ]
        rows.append(one(us=1.0, implementation="wrong", error="its result is wrong"))
        return series.contests(some(*rows))[0]

    faster = against(100, 120)
    assert faster.ratio == pytest.approx(1.2)
    assert faster.outcome == series.FASTER
    assert against(120, 100).outcome == series.SLOWER
    assert against(100, 101).outcome == series.FASTER
    assert against(100, 101, spread=0.01).outcome == series.UNDECIDED  # the intervals meet


def test_losses_come_first_and_are_counted() -> None:
    rows = []
    for shape, other in ((1024, 90.0), (2048, 200.0), (4096, 50.0)):
        rows.append(one(us=100.0, shape=(shape,)))
        rows.append(one(us=other, shape=(shape,), implementation="torch.compile"))
    found = made(some(*rows))
    losses = found.tables["Losses"]
    assert [line[0] for line in losses[1:]] == ["0.500×", "0.900×"]
    assert losses[1][-1] == "torch.compile"
    glance = dict(zip(*found.tables["At a glance"], strict=True))
    assert (glance["worst ratio"], glance["slower"], glance["faster"]) == ("0.500×", "▼ 2", "1")
    assert glance["mean ratio"] == ratio((0.9 * 2 * 0.5) ** (1 / 3))
    assert sum(w.startswith("▼") for _, w in found.texts) == 2
    lost, won = found.all("rect", "b slower"), found.all("rect", "b faster")
    assert (len(lost), len(won)) == (2, 1)
    assert float(won[0]["width"] or 0) == pytest.approx(float(lost[1]["width"] or 0), abs=0.1)
    assert float(won[0]["x"] or 0) > float(lost[1]["x"] or 0)


def test_roofs_are_the_best_that_was_measured() -> None:
    rows = [
        one(ceilings={"copy": 100.0, "read": 80.0}),
        one(op="b", ceilings={"copy": 200.0}),
        one(op="m", ceilings={"copy": 400.0, "product": 0.5}, ceiling="product"),
    ]
    assert [(r.name, r.rate) for r in roofline.slopes(rows)] == [("copy", 4000), ("read", 5000)]
    assert [(r.name, r.rate) for r in roofline.flats(rows)] == [("product, bfloat16", 200.0)]
    assert roofline.flats(rows[:2]) == []


def test_roofline_has_every_forward_in_its_place() -> None:
    rows = [
        one(us=100.0),  # as fast as the copy: on the roof
        one(us=200.0, operations=200_000_000, implementation="eager"),
        one(op="b", us=50.0, operations=50_000_000, implementation="eager"),
        one(op="wrong", us=10.0, error="its result is wrong"),
        one(op="nothing", operations=0),
        one(op="back", direction="backward"),
    ]
    text = roofline.section(some(*rows), {"opforge": 0, "eager": 1})
    found = Page(text)
    plot = next(i for i, (t, a) in enumerate(found.elements) if a.get("class") == "big")
    inside = found.elements[plot:]
    (circle,) = [a for t, a in inside if t == "circle"]
    squares = [a["d"] or "" for t, a in inside if t == "path"]
    assert len(squares) == 2
    left = [float(d[1:].split()[0]) for d in squares]
    assert left[0] < left[1]  # by intensity
    (roof,) = [a["points"] or "" for t, a in inside if t == "polyline"]
    (x1, y1), (x2, y2) = [tuple(map(float, p.split(","))) for p in roof.split()]
    x, y = float(circle["cx"] or 0), float(circle["cy"] or 0)
    assert y == pytest.approx(y1 + (y2 - y1) * (x - x1) / (x2 - x1), abs=0.3)
    names = [w for k, w in found.texts if k == "name"]
    assert sorted(names) == ["b", "relu", "relu"]


def test_sweeps_are_found() -> None:
    def rows(shapes: list[tuple[int, ...]]) -> Results:
        return some(*[one(shape=s, implementation=n) for s in shapes for n in ("opforge", "eager")])

    (found,) = scaling.sweeps(rows([(n, 64) for n in (8, 16, 32, 64)]))
    assert (found.shape, found.dim, len(found.rows)) == ("n × 64", 0, 8)
    assert not scaling.sweeps(rows([(n, 64) for n in (8, 16, 32)]))
    assert not scaling.sweeps(rows([(8, 64), (16, 32), (32, 16), (64, 8)]))
    assert [s.shape for s in scaling.sweeps(rows([(n,) for n in (1, 2, 3, 4)]))] == ["n"]
    curves = Page(
        scaling.section(rows([(n, 64) for n in (8, 16, 32, 64)]), {"opforge": 0, "eager": 1})
    )
    assert len(curves.all("polyline", "curve")) == 4  # time and share, of two
    assert len(curves.all("circle")) == 8 + 1  # ours in both, and in the legend
    places = [float(c["cx"] or 0) for c in curves.all("circle")[1:5]]
    assert [b - a for a, b in itertools.pairwise(places)] == pytest.approx(
        [places[1] - places[0]] * 3, abs=0.2
    )


def test_accuracy_marks_where_eager_is_nearer() -> None:
    rows = [
        one(ulp_max=2.0, ulp_rms=0.25),
        one(ulp_max=1.0, ulp_rms=0.5, implementation="eager"),
        one(ulp_max=math.inf, ulp_rms=math.nan, implementation="liger"),
    ]
    found = made(some(*rows), check())
    line = found.tables["Largest errors"][1]
    assert line[2:] == ["▲ 2.00", "0.250", "1.00", "0.500", "∞", "not a number"]
    assert found.tables["Errors in plain calls"][1][4:] == ["▲ 2.50", "0.500", "▲ 0.400", "0.280"]


def test_scoreboard() -> None:
    impossible = Report([OpReport("broken", "broken", impossible="no reference")], {})
    old = Report([OpReport("relu", "relu", [Result("gone-row", "cpu", "passed")])], {})
    found = made(Results(), old, check(), check(outcome="passed", place="sim"), impossible)
    board = {line[1]: line for line in found.tables["Scoreboard"]}
    assert board["narrow-gradient"][0] == "8★"
    assert board["narrow-gradient"][2] == "c✗ s✓"
    assert board["many-gpus"][2] == "c– s–"
    assert board["gone-row"][2] == "c✓"  # of an older opforge
    counts = found.tables["Counts of checks"]
    assert counts[1] == ["relu", "CPU", "2", "✗ 1", "1", "0 of 1"]
    text = page(Results(), [check(), impossible], "t")
    assert "second line" in text
    assert "print(1)" in text
    assert "✗ broken could not be checked" in text
    again = made(Results(), check(), check(outcome="passed"))  # the later report counts
    assert again.tables["Counts of checks"][1][3] == "0"


def test_numbers() -> None:
    values = [(34.234, "34.23"), (1204.4, "1204"), (0.5, "0.5000"), (123456.7, "123457"), (0, "0")]
    assert [number(v) for v, _ in values] == [w for _, w in values]
    assert (number(None), number(1.5e-7), number(math.inf)) == ("", "1.5e-07", "∞")
    assert (ratio(0.9964), ratio(12.34), percent(0.9844)) == ("0.996×", "12.3×", "98.4%")
    assert [svg.short(v) for v in (0.2, 500, 5000, 20_000, 3e6)] == [
        "0.2",
        "500",
        "5000",
        "20k",
        "3M",
    ]
    assert (count(1, "row"), count(2, "row")) == ("1 row", "2 rows")


def test_ticks_are_round_and_inside() -> None:
    assert svg.Scale(0.0, 1.04, 0, 100).ticks(5) == pytest.approx([0, 0.5, 1.0])
    assert svg.Scale(0.8, 1.25, 0, 100, log=True).ticks(5) == pytest.approx(
        [0.8, 0.9, 1.0, 1.1, 1.2]
    )
    assert svg.Scale(0.3, 90, 0, 100, log=True).ticks() == pytest.approx([0.5, 1, 2, 5, 10, 20, 50])
    assert svg.Scale(1, 100, 0, 50, log=True)(10) == pytest.approx(25)
