# SPDX-License-Identifier: Apache-2.0
"""The parts of `opforge bench`: statistics, the clock, shapes, costs, what is roughly right."""

from __future__ import annotations

import math
import random
import statistics
import time
from pathlib import Path

import pytest
import torch
from helpers import write_op

import opforge
from opforge.bench import clock, shapes, stats
from opforge.bench.inputs import DeviceMake
from opforge.bench.shapes import ShapeError
from opforge.truth import cases, compare

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
    prepared: list[float] = []

    def call() -> list[torch.Tensor]:
        steps.append("call")
        time.sleep(0.01)
        return [torch.tensor(len(steps))]

    def slow(step: str) -> None:
        steps.append(step)
        time.sleep(0.05)
        prepared.append(time.perf_counter())

    turn = clock.CpuClock().turn(
        lambda: slow("change"), lambda: slow("prepare"), [call, call, call], keep=True
    )
    assert steps == ["change", "prepare", "call", "call", "call"]
    assert 0.01 <= turn.seconds <= (time.perf_counter() - prepared[-1]) / 3
    assert [int(o[0]) for o in turn.outputs] == [3, 4, 5]


def test_a_turn_is_taken_again_if_the_clocks_disagree_once(monkeypatch):
    """Somebody else may have had the processor just between the two."""
    timer, real, readings = clock.CpuClock(), time.perf_counter_ns, []

    def interrupted() -> int:
        readings.append(1)
        return real() - (10**9 if len(readings) == 2 else 0)

    monkeypatch.setattr(clock, "_now", interrupted)
    began = time.perf_counter()
    turn = timer.turn(nothing, nothing, [lambda: time.sleep(0.01)], keep=False)
    assert 0.01 <= turn.seconds <= time.perf_counter() - began
    assert len(readings) == 4


def test_clocks_that_always_disagree_are_not_believed(monkeypatch):
    timer, real = clock.CpuClock(), time.perf_counter_ns
    monkeypatch.setattr(clock, "_now", lambda: real() // 10)
    with pytest.raises(clock.ClockError, match="two clocks disagree on how long its calls took"):
        timer.turn(nothing, nothing, [lambda: time.sleep(0.05)], keep=False)


def test_a_slow_turn_does_not_make_the_next_ones_long(monkeypatch):
    """The first one allocates: the device sleeps long enough for it, then as long as needed."""
    timer = object.__new__(clock.CudaClock)  # its own begins on a GPU
    timer.begin()
    sleeps, queued = [], iter([0.05, 0.05, *[1e-4] * 20])

    def attempt(*_) -> tuple[clock.Turn, float]:
        sleeps.append(timer._sleep)
        return clock.Turn(1e-3, None, []), next(queued)

    monkeypatch.setattr(timer, "_try", attempt)
    for _ in range(20):
        timer.turn(nothing, nothing, [nothing], keep=False)
    assert sleeps[:4] == pytest.approx([2e-3, 0.1, 0.1, 0.07])
    assert sleeps[-1] == pytest.approx(2e-3)


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
    with pytest.raises(ShapeError, match="is not a shape; write it as 8192x8192, several with"):
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
    # Of y, h and what was saved (h, weight, a number per row); x and residual have one gradient.
    ("rms_norm", "residual"): (4 * X + 2 * ROW + ROWS * F32, X + ROW, 3 * X + ROW),
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


def test_gradients_that_lie_side_by_side_are_two(tmp_path):
    op = record(
        tmp_path,
        "bench_pair",
        "sized=lambda make, *s: (make(*s), make(*s)), "
        "backward=lambda grad_y, a, b: tuple(torch.stack((grad_y * b, grad_y * a)).unbind()),",
        "Tensor a, Tensor b) -> Tensor y",
    )
    assert op.backward_cost(torch.ones(10), torch.ones(10)).written == 2 * 10 * F32


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
