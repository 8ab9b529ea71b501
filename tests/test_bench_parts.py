# SPDX-License-Identifier: Apache-2.0
"""The parts of `opforge bench`: statistics, shapes, costs, results in files, guarded inputs."""

from __future__ import annotations

import json
import math
import random
import statistics
import time
from pathlib import Path

import pytest
import torch
from helpers import write_op

import opforge
from opforge.bench import clock, results, shapes, stats
from opforge.bench.inputs import DeviceMake, InputSet, make_sets
from opforge.bench.results import Results, ResultsError, Row
from opforge.bench.shapes import ShapeError
from opforge.check import cases, compare

ROWS, COLUMNS = 128, 256
F32 = 4  # bytes

# --- statistics -----------------------------------------------------------------------------------

SAMPLES = {
    "normal": (lambda draw: draw.gauss(10, 1), 10.0),
    "skewed": (lambda draw: draw.expovariate(1.0), math.log(2)),
    "with outliers": (lambda draw: 1 + draw.random() + 50 * (draw.random() < 0.1), None),
}


@pytest.mark.parametrize("kind", SAMPLES)
@pytest.mark.parametrize("turns", [6, 9, 25, 100])
def test_the_interval_holds_the_true_median_nineteen_times_in_twenty(kind, turns):
    one, median = SAMPLES[kind]
    draw = random.Random(turns)
    if median is None:
        median = statistics.median(one(draw) for _ in range(100_000))
    held = 0
    for _ in range(2000):
        found = stats.summarise([one(draw) for _ in range(turns)])
        assert found.low <= found.median <= found.high
        held += found.low <= median <= found.high
    # Of 2000 trials at 95%, 93.5% or fewer would be three standard deviations off.
    assert held / 2000 > 0.935
    if turns == 100:  # and it is no wider than it needs to be: ordered times come in steps
        assert held / 2000 < 0.985


def test_the_interval_shrinks_with_the_root_of_the_number_of_turns():
    draw = random.Random(1)
    few, many = (
        statistics.mean(
            stats.summarise([draw.gauss(10, 1) for _ in range(n)]).uncertainty for _ in range(200)
        )
        for n in (25, 400)
    )
    assert 0.2 < many / few < 0.3


def test_a_summary_has_the_median_the_interval_and_the_spread():
    found = stats.summarise([5.0, 1.0, 4.0, 2.0, 3.0, 9.0, 8.0, 7.0, 6.0])
    # Of nine, at most one lies below the median with a probability of 10/512.
    assert found == stats.Summary(median=5.0, low=2.0, high=8.0, spread=4.0 / 5.0)
    assert found.uncertainty == 3.0 / 5.0
    assert stats.summarise([3.0]) == stats.Summary(3.0, 3.0, 3.0, 0.0)


def test_thousands_of_turns_are_summarised():
    found = stats.summarise([float(i) for i in range(3001)])
    assert found.median == 1500
    assert 1500 - found.low == found.high - 1500 == pytest.approx(0.98 * math.sqrt(3001), abs=2)


CERTAIN, UNCERTAIN = [1.0] * 9, [1.0, 1.0, 1.0, 1.0, 1.0, 1.5, 1.5, 1.5, 1.5]


@pytest.mark.parametrize(
    ("times", "elapsed", "enough"),
    [
        ({"a": CERTAIN, "b": CERTAIN}, 0.1, True),
        ({"a": CERTAIN, "b": UNCERTAIN}, 0.1, False),
        ({"a": UNCERTAIN, "b": UNCERTAIN}, 2.1, True),  # time is up
        ({"a": CERTAIN, "b": CERTAIN[:8]}, 0.1, False),
        ({"a": CERTAIN, "b": CERTAIN[:8]}, 19.0, False),  # not before the least number
        ({"a": CERTAIN, "b": CERTAIN[:8]}, 21.0, True),  # but for what takes very long
        ({"a": CERTAIN, "b": CERTAIN[:2]}, 100.0, False),
        ({}, 0.1, False),
    ],
)
def test_turns_go_on_until_every_median_is_certain_or_time_is_up(times, elapsed, enough):
    patience = stats.Patience(least=9, uncertainty=0.005, seconds=2.0)
    assert patience.enough(times, elapsed) is enough


# --- the clock ------------------------------------------------------------------------------------


def test_outputs_are_kept_as_each_call_leaves_them():
    y = torch.zeros(1)
    turn = clock.CpuClock().turn(nothing, nothing, [lambda: [y.add_(1), None]] * 3, keep=True)
    assert [(float(one), none) for one, none in turn.outputs] == [(1, None), (2, None), (3, None)]
    assert turn.host is None
    assert clock.CpuClock().turn(nothing, nothing, [lambda: [y]], keep=False).outputs == []


def test_a_turn_is_timed_per_call_and_without_what_comes_before():
    steps: list[str] = []

    def call() -> list[torch.Tensor]:
        steps.append("call")
        time.sleep(0.01)
        return [torch.tensor(len(steps))]

    def slow(step: str) -> None:
        steps.append(step)
        time.sleep(0.05)

    turn = clock.CpuClock().turn(
        lambda: slow("change"), lambda: slow("prepare"), [call, call, call], keep=True
    )
    assert steps == ["change", "prepare", "call", "call", "call"]
    assert 0.01 <= turn.seconds < 0.04
    assert [int(o[0]) for o in turn.outputs] == [3, 4, 5]


def test_a_turn_is_taken_again_if_the_clocks_disagree_once(monkeypatch):
    """Somebody else may have had the processor just between the two."""
    timer, real, readings = clock.CpuClock(), time.perf_counter_ns, []

    def interrupted() -> int:
        readings.append(1)
        return real() - (10**9 if len(readings) == 2 else 0)

    monkeypatch.setattr(clock, "_now", interrupted)
    turn = timer.turn(nothing, nothing, [lambda: time.sleep(0.01)], keep=False)
    assert 0.01 <= turn.seconds < 0.1
    assert len(readings) == 4


def test_clocks_that_always_disagree_are_not_believed(monkeypatch):
    timer, real = clock.CpuClock(), time.perf_counter_ns
    monkeypatch.setattr(clock, "_now", lambda: real() // 10)
    with pytest.raises(clock.ClockError, match="two clocks disagree on how long its calls took"):
        timer.turn(nothing, nothing, [lambda: time.sleep(0.05)], keep=False)


def nothing() -> None:
    pass


# --- shapes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8192x8192", [(8192, 8192)]),
        ("7", [(7,)]),
        ("2X3×4", [(2, 3, 4)]),
        (" 128x256 , 4096x50257", [(128, 256), (4096, 50257)]),
        ("8x8,8x8", [(8, 8)]),
        ("small", shapes.SMALL),
        ("8x64,small,odd", [*shapes.SMALL, *shapes.ODD]),
        ("all", [*shapes.SMALL, *shapes.LARGE, *shapes.ODD]),
    ],
)
def test_shapes_are_read_as_users_write_them(text, expected):
    assert shapes.parse(text) == expected


@pytest.mark.parametrize("text", ["", "8x", "x8", "8*8", "-1x4", "8x8;9x9", "huge", "8x8,", "1.5"])
def test_what_is_no_shape_is_refused_with_an_example(text):
    with pytest.raises(ShapeError, match="is no shape; write it as 8192x8192, several with commas"):
        shapes.parse(text)


def test_a_shape_that_cannot_be_timed_is_refused():
    with pytest.raises(ShapeError, match="nothing to time at 0x5: it has no element"):
        shapes.parse("8x8,0x5")
    with pytest.raises(ShapeError, match="at 1000000000x1000000000: it has too many elements"):
        shapes.parse("1000000000x1000000000")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_sweep_grows_in_both_directions_and_has_odd_widths(device):
    found = shapes.sweep(device)
    assert len(found) == len(set(found)) > 10
    tall = [rows for rows, columns in found if columns == 4096]
    wide = [columns for rows, columns in found if rows == found[-1][0] and columns % 2 == 0]
    for sizes in (tall, wide):
        assert sorted(sizes)[-1] >= 16 * sorted(sizes)[0]
    assert any(columns % 2 for _, columns in found)
    largest = max(rows * columns for rows, columns in found)
    assert largest < (2**27 if device == "cuda" else 2**24)


def expected_arguments(x, row):
    return {
        "relu": {"": (x,)},
        "vector_add": {"equal shapes": (x, x), "a row added": (x, row)},
        "scale_bias_relu": {"": (x, row, 0.5)},
        "reduce_sum": {
            "last dim": (x, [-1], False),
            "first dim": (x, [0], False),
            "all": (x, None, False),
        },
    }


@pytest.mark.parametrize("shape", [(128, 256), (8, 4, 32)])
@pytest.mark.parametrize("name", ["relu", "vector_add", "scale_bias_relu", "reduce_sum"])
def test_the_arguments_of_built_in_ops_have_the_shape_that_was_asked_for(name, shape):
    make = DeviceMake(torch.bfloat16, "cpu")
    found = shapes.arguments(opforge.discover.find(name), make, shape)
    sizes = {
        variant: tuple(a.shape if isinstance(a, torch.Tensor) else a for a in case)
        for variant, case in found.items()
    }
    assert sizes == expected_arguments(shape, shape[-1:])[name]
    tensors = [a for case in found.values() for a in case if isinstance(a, torch.Tensor)]
    assert {t.dtype for t in tensors} == {torch.bfloat16}


RECORD = """\
import torch
from opforge import Op

op = Op(
    schema="{name}({schema}",
    reference=lambda x, *others: 2 * x,
    dtypes=(torch.float32,),
    {more}
)
"""


def record(folder: Path, name: str, more: str, schema: str = "Tensor x) -> Tensor y") -> opforge.Op:
    text = RECORD.format(name=name, schema=schema, more=more)
    return opforge.discover.find(str(write_op(folder / name, op_py=text, cpp=None)))


make = DeviceMake(torch.float32, "cpu")


def test_the_wrong_number_of_sizes_is_said(tmp_path):
    op = record(tmp_path, "bench_matrix", "sized=lambda make, rows, columns: (make(rows),),")
    with pytest.raises(ShapeError, match="bench_matrix is benchmarked at shapes of 2 numbers; got"):
        shapes.arguments(op, make, (8, 9, 10))


def test_sizes_that_a_record_cannot_use_are_said(tmp_path):
    op = record(tmp_path, "bench_batched", "sized=lambda make, *shape: (make(shape[3]),),")
    with pytest.raises(ShapeError, match="bench_batched has no arguments of shape 8x9: tup"):
        shapes.arguments(op, make, (8, 9))


def test_sized_must_give_as_many_values_as_the_schema_has_arguments(tmp_path):
    op = record(tmp_path, "bench_miscounted", "sized=lambda make, *shape: (make(*shape), 2),")
    with pytest.raises(ShapeError, match=r"sized\(\) of bench_miscounted gives 2 values, its sch"):
        shapes.arguments(op, make, (8, 9))


def test_without_sized_a_case_is_resized_and_equal_sizes_stay_equal(tmp_path):
    op = record(
        tmp_path,
        "bench_resized",
        "cases=lambda make: [(make(1),) * 3 + (1.0,), "
        "(make(5, 7), make(7), torch.tensor([1, 3, 1, 3, 1]), 0.25)],",
        "Tensor x, Tensor row, Tensor label, float p) -> Tensor y",
    )
    ((name, (x, row, label, p)),) = shapes.arguments(op, make, (32, 48)).items()
    assert name == ""
    assert (x.shape, row.shape, label.shape, p) == ((32, 48), (48,), (32,), 0.25)
    assert set(label.tolist()) == {1, 3}


def test_an_op_whose_cases_cannot_be_resized_is_asked_for_sized(tmp_path):
    op = record(tmp_path, "bench_square", "cases=lambda make: [(make(5, 5),), (make(0, 3),)],")
    text = "no case of bench_square can be resized to 8x9: none .* with 2 dims .*sized=lambda make"
    with pytest.raises(ShapeError, match=text):
        shapes.arguments(op, make, (8, 9))


# --- costs ----------------------------------------------------------------------------------------

X, ROW = ROWS * COLUMNS * F32, COLUMNS * F32

FORWARD = {  # bytes, of these written, operations
    ("relu", ""): (X + X, X, ROWS * COLUMNS),
    ("vector_add", "equal shapes"): (X + X + X, X, ROWS * COLUMNS),
    ("vector_add", "a row added"): (X + ROW + X, X, ROWS * COLUMNS),
    ("scale_bias_relu", ""): (X + ROW + X, X, 3 * ROWS * COLUMNS),
    ("reduce_sum", "last dim"): (X + ROWS * F32, ROWS * F32, ROWS * COLUMNS),
    ("reduce_sum", "first dim"): (X + ROW, ROW, ROWS * COLUMNS),
    ("reduce_sum", "all"): (X + F32, F32, ROWS * COLUMNS),
}

BACKWARD = {  # bytes, of these written, what nobody can do without
    ("relu", ""): (X + X + X, X, X + X),  # grad_y and y, then grad_x; another may save a mask
    ("vector_add", "equal shapes"): (0, 0, 0),  # both gradients are the incoming one
    ("vector_add", "a row added"): (X + ROW, ROW, X + ROW),  # grad_a is the incoming one
    ("scale_bias_relu", ""): (X + X + X + ROW, X + ROW, X + X + ROW),
    ("reduce_sum", "last dim"): (0, 0, 0),  # expanded, not copied
    ("reduce_sum", "first dim"): (0, 0, 0),
    ("reduce_sum", "all"): (0, 0, 0),
}


def sized(name: str, variant: str, dtype: torch.dtype = torch.float32):
    op = opforge.discover.find(name)
    return op, shapes.arguments(op, DeviceMake(dtype, "cpu"), (ROWS, COLUMNS))[variant]


@pytest.mark.parametrize(("name", "variant"), FORWARD)
def test_a_forward_reads_every_input_and_writes_every_output_once(name, variant):
    op, case = sized(name, variant)
    cost = op.cost(*case)
    assert (cost.bytes, cost.written, cost.operations) == FORWARD[name, variant]
    assert cost.floor == cost.bytes


@pytest.mark.parametrize(("name", "variant"), BACKWARD)
def test_a_backward_reads_gradients_and_what_was_saved_and_writes_what_is_new(name, variant):
    op, case = sized(name, variant)
    cost = op.backward_cost(*case)
    assert (cost.bytes, cost.written, cost.floor) == BACKWARD[name, variant]


def test_half_the_precision_is_half_the_bytes():
    op, case = sized("scale_bias_relu", "", torch.bfloat16)
    assert op.cost(*case).bytes == FORWARD["scale_bias_relu", ""][0] / 2
    assert op.backward_cost(*case).bytes == BACKWARD["scale_bias_relu", ""][0] / 2


def test_what_is_not_differentiated_has_no_backward_to_pay_for(tmp_path):
    op = record(
        tmp_path, "bench_sign", "sized=lambda make, *s: (make(*s),), backward=lambda grad_y: None,"
    )
    assert op.backward_cost(torch.ones(3)).bytes == 0


# --- results in files -----------------------------------------------------------------------------

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
    with pytest.raises(ResultsError, match=r"has no results in it \(\*\.json\)"):
        results.read(tmp_path.joinpath("empty").mkdir() or tmp_path / "empty")


GOOD = {"schema": 1, "runs": {"r1": {}}, "rows": [row().as_json()]}

DAMAGED = {
    "no JSON": ('{"schema": 1, "ro', "is damaged, it is no JSON: "),
    "no text": (b"\x80\x81", "is damaged, it is no JSON: "),
    "a list": ([1, 2], "has no results of `opforge bench` in it: no schema number"),
    "somebody else's": ({"name": "x"}, "has no results of `opforge bench` in it: no schema"),
    "older": ({**GOOD, "schema": 0}, "is of an older opforge: its schema is 0, this one reads 1; "),
    "newer": ({**GOOD, "schema": 2}, "is of a newer opforge: its schema is 2, this one reads 1; "),
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


# --- guarded inputs -------------------------------------------------------------------------------

GUARDED = {
    "contiguous": lambda: torch.randn(33, 65),
    "transposed": lambda: torch.randn(33, 65).t(),
    "apart": lambda: torch.randn(33, 65)[:, 1::2],
    "expanded": lambda: torch.randn(1, 65).expand(33, 65),
    "a scalar": lambda: torch.randn(()),
    "bfloat16": lambda: torch.randn(33, 65).bfloat16(),
    "float64": lambda: torch.randn(33, 65).double(),
}


def sets_of(*case: object, count: int) -> list[InputSet]:
    """Of a case whose float tensors are just made at random."""
    make = DeviceMake(torch.float32, "cpu")
    make.made.extend(a for a in case if isinstance(a, torch.Tensor) and a.is_floating_point())
    return make_sets(make, lambda make: case, count)


def guarded(*case: object) -> InputSet:
    (found,) = sets_of(*case, count=1)
    return found


@pytest.mark.parametrize("kind", GUARDED)
def test_a_guarded_tensor_is_like_the_one_it_stands_for(kind):
    original = GUARDED[kind]()
    inputs = guarded(original)
    (tensor,) = inputs.case
    assert (tensor.dtype, tensor.shape, tensor.stride()) == (
        original.dtype,
        original.shape,
        original.stride(),
    )
    assert torch.equal(tensor, original)
    assert tensor.data_ptr() % 256 == tensor.untyped_storage().data_ptr() % 256  # still aligned
    assert inputs.damages() == []


@pytest.mark.parametrize("kind", GUARDED)
def test_a_change_alters_every_element_and_leaves_no_trace(kind):
    torch.manual_seed(0)
    original = GUARDED[kind]()
    inputs = guarded(original)
    (tensor,) = inputs.case
    version, strides, draw = tensor._version, tensor.stride(), random.Random(3)
    for _ in range(3):
        before = tensor.clone()
        inputs.change(draw)
        same = int((tensor == before).sum())
        assert same <= (0.01 * tensor.numel() if tensor.dtype == torch.bfloat16 else 0)
        assert 0 < float(tensor.abs().max()) <= float(original.abs().max())
    assert (tensor._version, tensor.stride()) == (version, strides)
    assert inputs.damages() == []


def test_all_sets_change_and_the_same_draw_gives_the_same_values():
    sets = sets_of(torch.randn(40, 50), 3, count=3)
    for draw in (random.Random(5), random.Random(5)):
        for one in sets:
            one.change(draw)
        values = [one.case[0].clone() for one in sets]
    for one in sets:
        one.change(random.Random(6))
    draw = random.Random(5)
    for one, value in zip(sets, values, strict=True):
        assert not torch.equal(one.case[0], value)
        one.change(draw)
        assert torch.equal(one.case[0], value)
        assert one.case[1] == 3
    assert not torch.equal(values[0], values[1])


def test_what_is_made_of_random_numbers_keeps_its_meaning_and_changes():
    def case(make):
        return make(8, 8).tril(), torch.randint(0, 5, (100,)), make(4)

    (inputs,) = make_sets(DeviceMake(torch.float32, "cpu"), case, 1)
    triangles, labels, draw = set(), set(), random.Random(0)
    for _ in range(20):
        inputs.change(draw)
        triangle, label, _ = inputs.case
        assert torch.equal(triangle, triangle.tril())
        assert 0 <= int(label.min()) <= int(label.max()) < 5
        triangles.add(float(triangle.sum()))
        labels.add(tuple(label.tolist()))
    assert len(triangles) == len(labels) == 3
    assert inputs.damages() == []


@pytest.mark.parametrize("kind", ["contiguous", "apart", "bfloat16", "labels"])
@pytest.mark.parametrize("where", ["before", "behind", "on both sides"])
def test_a_write_outside_of_a_tensor_is_found_and_repaired(kind, where):
    inputs = guarded(torch.arange(50) if kind == "labels" else GUARDED[kind]())
    inputs.change(random.Random(0))
    (tensor,) = inputs.case
    memory = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
    first = tensor.data_ptr() - memory.data_ptr()
    last = tensor[(-1,) * tensor.dim()].data_ptr() - memory.data_ptr()
    if where != "behind":
        memory[first - 1] = 0
    if where != "before":
        memory[last + tensor.element_size()] = 0
    assert inputs.damages() == ["writes outside of its tensors: a canary beside an input is gone"]
    assert inputs.damages() == []


@pytest.mark.parametrize("kind", [*GUARDED, "labels"])
def test_a_changed_input_is_found_and_repaired(kind):
    original = torch.arange(50) if kind == "labels" else GUARDED[kind]()
    inputs = guarded(3, original, torch.randn(4))
    inputs.change(random.Random(0))
    tensor = inputs.case[1]
    before = tensor.clone()
    tensor.as_strided((1,), (1,)).add_(1)
    assert inputs.damages() == ["changes its inputs"]
    assert torch.equal(tensor, before)
    assert inputs.damages() == []


def test_an_input_that_becomes_nan_is_a_changed_one_and_a_nan_that_was_there_is_not():
    x = torch.randn(5000)
    x[7] = float("nan")
    inputs = guarded(x)
    inputs.change(random.Random(0))
    assert inputs.damages() == []
    inputs.case[0][3] = float("nan")
    assert inputs.damages() == ["changes its inputs"]


# --- the truth about others -----------------------------------------------------------------------


def doubled(x: torch.Tensor) -> cases.Truth:
    op, _ = sized("vector_add", "equal shapes")
    return cases.true_outputs(op, (x, x))


def test_roughly_right_is_right_but_for_rounding():
    x = torch.randn(1000)
    truth = doubled(x)
    assert truth.roughly([2 * x])
    assert truth.roughly([2 * x * (1 + torch.finfo(torch.float32).eps)])
    assert truth.roughly([(2 * x).double()])
    assert not truth.roughly([2 * x * (1 + 1e-6)])
    assert not truth.roughly([(2 * x).bfloat16()])
    assert not truth.roughly([torch.full_like(x, float("nan"))])


@pytest.mark.parametrize(
    ("got", "text"),
    [
        ([], "vector_add: 0 results, not 1"),
        ([torch.ones(3), torch.ones(3)], "vector_add: 2 results, not 1"),
        ([None], "vector_add: the reference has one, the op has none"),
        ([2.0], "vector_add: a float, not a tensor"),
        ([torch.ones(1)], r"vector_add: shape \(1,\), not \(3,\)"),
        ([torch.full((3,), 2)], "vector_add: dtype torch.int64, not torch.float32"),
    ],
)
def test_results_of_another_kind_are_wrong_and_not_roughly_right(got, text):
    truth = doubled(torch.ones(3))
    with pytest.raises(compare.Mismatch, match=text):
        truth.check(got)
    assert not truth.roughly(got)
