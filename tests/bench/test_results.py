# SPDX-License-Identifier: Apache-2.0
"""Results of `opforge bench` in files: kept, merged, read again, compared."""

from __future__ import annotations

import json

import pytest

from opforge.bench import results
from opforge.bench.results import Results, ResultsError, Row

FACTS = {"date": "2025-01-01 00:00", "torch": "2.10", "cpu": "a µ-processor"}


def row(implementation: str = "opforge", us: float | None = 10.0, run: str = "r1", **facts) -> Row:
    values = {
        "op": "relu",
        "direction": "forward",
        "variant": "",
        "dtype": "float32",
        "shape": (128, 256),
        "ceilings": {"copy": 8.0},
        "ceiling": "copy",
        **facts,
    }
    if us is not None:
        values = {"low": 0.99 * us, "high": 1.01 * us, **values}
    return Row(implementation=implementation, us=us, run=run, **values)


def test_results_come_back_from_a_file_as_they_went_in(tmp_path):
    before = Results(
        [
            row(bytes=262144, note="µs", state={"sm_mhz": 1980}, extra_bytes=0, ulp_max=0.5),
            row("eager", us=None, variant="last dim", shape=(3,), error="out of memory"),
        ],
        {"r1": FACTS},
    )
    file = tmp_path / "new folder" / "results.json"
    before.write(file)
    assert results.read(file) == before
    data = json.loads(file.read_text(encoding="utf-8"))
    assert data["schema"] == results.SCHEMA == 1
    assert data["rows"][0]["pass"] == "forward"
    assert "us" not in data["rows"][1]  # what is unknown is left out
    assert [f.name for f in file.parent.iterdir()] == ["results.json"]
    assert file.stat().st_mode & 0o777 == 0o644


def test_a_row_knows_its_share_of_the_limit_and_its_rates():
    one = row(us=16.0, bytes=32_000_000, operations=64_000_000)
    assert (one.share, one.gb_per_s, one.tflop_per_s) == (0.5, 2000.0, 4.0)
    unknown = row(us=None, bytes=1, operations=1)
    assert (unknown.share, unknown.gb_per_s, unknown.tflop_per_s) == (None, None, None)


def test_a_newer_row_takes_the_place_of_an_older_one_and_orphaned_runs_go(tmp_path):
    file = tmp_path / "all.json"
    first = Results([row(run="r1"), row("eager", run="r1")], {"r1": FACTS})
    results.store(first, file)
    others = [row(run="r2", dtype="bfloat16"), row(run="r2", shape=(128, 257))]
    results.store(Results([row(us=5.0, run="r2"), *others], {"r2": FACTS}), file)
    merged = results.read(file)
    assert [(r.implementation, r.us, r.run) for r in merged.rows] == [
        ("opforge", 5.0, "r2"),
        ("eager", 10.0, "r1"),
        ("opforge", 10.0, "r2"),
        ("opforge", 10.0, "r2"),
    ]
    assert set(merged.runs) == {"r1", "r2"}
    results.store(Results([row("eager", run="r3")], {"r3": FACTS}), file)
    assert set(results.read(file).runs) == {"r2", "r3"}


def test_a_folder_has_a_file_per_op(tmp_path):
    both = Results([row(), row(op="vector_add", run="r2")], {"r1": FACTS, "r2": {}})
    written = results.store(both, tmp_path / "folder")
    assert sorted(f.name for f in written) == ["relu.json", "vector_add.json"]
    assert set(results.read(tmp_path / "folder" / "relu.json").runs) == {"r1"}
    assert results.read(tmp_path / "folder") == both
    assert results.store(both, tmp_path / "one.json") == [tmp_path / "one.json"]
    with pytest.raises(ResultsError, match=r"has no results \(\*\.json\)"):
        results.read(tmp_path.joinpath("empty").mkdir() or tmp_path / "empty")


GOOD = {"schema": 1, "runs": {"r1": {}}, "rows": [row().as_json()]}

DAMAGED = {
    "no JSON": ('{"schema": 1, "ro', "is damaged, it is not JSON: "),
    "no text": (b"\x80\x81", "is damaged, it is not JSON: "),
    "a list": ([1, 2], "has no results of `opforge bench`: it has no schema number"),
    "somebody else's": ({"name": "x"}, "has no results of `opforge bench`: it has no schema"),
    "older": ({**GOOD, "schema": 0}, "is from an older opforge: it has schema 0, not 1; "),
    "newer": ({**GOOD, "schema": 2}, "is from a newer opforge: it has schema 2, not 1; "),
    "no rows": ({"schema": 1, "runs": {}}, "is damaged: KeyError: 'rows'"),
    "no runs": ({"schema": 1, "rows": []}, "is damaged: KeyError: 'runs'"),
    "no provenance": ({**GOOD, "runs": {}}, "is damaged: no provenance for run r1"),
    "a row without shape": ({**GOOD, "rows": [{"op": "a"}]}, "is damaged: KeyError: 'shape'"),
    "a row without op": ({**GOOD, "rows": [{"shape": [1]}]}, "is damaged: TypeError: .*'op'"),
    "a row that is none": ({**GOOD, "rows": [3]}, "is damaged: AttributeError"),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_file_that_cannot_be_used_is_refused_by_name(tmp_path, kind):
    content, text = DAMAGED[kind]
    file = tmp_path / "bad.json"
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        file.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(ResultsError, match=f"bad.json {text}"):
        results.read(file)


def test_results_that_are_not_there_are_told_from_damaged_ones(tmp_path):
    with pytest.raises(ResultsError, match=r"there are no results at .*none\.json"):
        results.read(tmp_path / "none.json")


def test_what_a_newer_opforge_adds_to_a_row_is_overlooked(tmp_path):
    file = tmp_path / "more.json"
    file.write_text(json.dumps({**GOOD, "rows": [{**row().as_json(), "mood": "good"}]}))
    assert results.read(file).rows == [row()]


def compared(before: Row, now: Row) -> results.Change:
    (change,) = results.compare(Results([before]), Results([now]), 0.02)
    return change


@pytest.mark.parametrize(
    ("us", "ceiling", "ratio", "word"),
    [
        (13.0, 8.0, 10 / 13, "slower"),
        (10.1, 8.0, 10 / 10.1, "the same"),
        (7.0, 8.0, 10 / 7, "faster"),
        (13.0, 10.4, 1.0, "the same"),  # the machine was slower, and so was the limit
    ],
)
def test_speed_is_compared_as_a_share_of_the_limit_of_its_own_run(us, ceiling, ratio, word):
    change = compared(row(us=10.0), row(us=us, ceilings={"copy": ceiling}))
    assert change.ratio == pytest.approx(ratio)
    assert change.noise == pytest.approx(0.02)
    found = "slower" if change.ratio < 1 - change.noise else "the same"
    assert ("faster" if change.ratio > 1 + change.noise else found) == word


def test_noise_is_both_intervals_and_at_least_the_least():
    wide = row(us=10.0, low=9.0, high=11.0)
    assert compared(wide, wide).noise == pytest.approx(0.2)
    certain = row(us=10.0, low=10.0, high=10.0)
    assert compared(certain, certain).noise == 0.02


def test_only_rows_of_ours_that_were_timed_both_times_are_compared():
    rows = [row(), row("eager"), row(shape=(1,)), row(dtype="float16", us=None)]
    now = [row(), row("eager"), row(shape=(2,)), row(dtype="float16")]
    found = results.compare(Results(rows), Results(now), 0.02)
    assert [c.row.key for c in found] == [row().key]


def test_the_best_other_is_the_fastest_that_is_right():
    fastest, wrong = row("b", us=3.0), row("d", us=1.0, error="wrong: all of it")
    assert results.best_other([row(us=0.5), row("a", us=4.0), fastest, row("c", us=None), wrong])\
        is fastest  # fmt: skip
    assert results.best_other([row(us=0.5), wrong]) is None
