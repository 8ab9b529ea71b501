# SPDX-License-Identifier: Apache-2.0
"""Alarms that the check once raised on something that was right."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
import torch
from helpers import load_record

from opforge import discover
from opforge.check import worker
from opforge.check.place import Place
from opforge.check.results import FAILED, PASSED
from opforge.check.row import Trial, find
from opforge.truth import compare
from opforge.truth.cases import check_backward, check_forward
from opforge.truth.expected import cast
from opforge.truth.narrow_rounding import NarrowRounding
from opforge.truth.rounding import RandomRounding


def test_the_largest_case_has_no_empty_tensor(tmp_path):
    """A kernel may return before it looks at dtypes where there is nothing to do."""
    op = load_record(
        tmp_path,
        """
        op = Op(
            schema="looked_up(Tensor table, Tensor index) -> Tensor y",
            reference=lambda table, index: table[index],
            own_dtypes={"index": (torch.int64,)},
            cases=lambda make: [
                (make(2), torch.zeros(3, dtype=torch.int64)),
                (make(90), torch.zeros(0, dtype=torch.int64)),
            ],
        )
        """,
    )
    s = Trial(op, Place("cpu")).largest(torch.float32)
    assert [x.shape[0] for x in s.case] == [2, 3]


@pytest.mark.parametrize(
    "repeated",
    [
        lambda x, index: x[index],
        lambda x, index: x.index_select(0, index),
        lambda x, index: x.gather(0, index),
        lambda x, index: x.take(index),
        lambda x, index: torch.nn.functional.embedding(index, x[:, None])[:, 0],
    ],
    ids=["index", "index_select", "gather", "take", "embedding"],
)
@pytest.mark.parametrize("terms", [torch.full((127,), 0.661353), torch.linspace(-2, 3, 127)])
def test_a_sum_by_index_may_err_as_any_other_sum(repeated, terms):
    """The gradient of a row that is looked up often is a sum, added up one by one."""

    def spread(way):
        off = []
        for seed in range(64):
            x = torch.ones(2, dtype=torch.float64, requires_grad=True)
            with RandomRounding(torch.float32, seed):
                way(x).backward(terms.double())
            off.append(float(x.grad[1]) - float(terms.double().sum()))
        return sum(o * o for o in off) ** 0.5

    by_index = spread(lambda x: repeated(x, torch.ones(127, dtype=torch.int64)))
    plain = spread(lambda x: x[1].expand(127))
    assert plain / 1.5 < by_index < plain * 1.5


def test_the_truth_about_complex_tensors_is_in_float64():
    z = torch.randn(5, dtype=torch.complex64)
    (wide,) = cast((z,), torch.float64)
    assert wide.dtype == torch.complex128
    assert torch.equal(wide, z.to(torch.complex128))


@pytest.mark.parametrize(
    "add",
    [
        lambda z: z.sum(0),
        lambda z: z.mean(0),
        lambda z: z.cumsum(0)[-1],
        lambda z: torch.mv(z[None], torch.ones_like(z))[0],
        lambda z: torch.zeros(1, dtype=z.dtype).index_add(0, torch.zeros(200, dtype=int), z)[0],
    ],
    ids=["sum", "mean", "cumsum", "product", "index"],
)
def test_sums_of_complex_numbers_are_rounded_as_those_of_their_parts(add):
    z = torch.complex(torch.linspace(-2, 3, 200), torch.linspace(4, -1, 200)).to(torch.complex128)

    def spread(parts):
        off = []
        for seed in range(64):
            with RandomRounding(torch.float32, seed):
                moved = [add(p) for p in parts]
            off += [abs(m - add(p)) for m, p in zip(moved, parts, strict=True)]
        return float(torch.stack(off).square().sum().sqrt())

    assert spread([z.real, z.imag]) / 2 < spread([z]) < spread([z.real, z.imag]) * 2


@pytest.mark.parametrize(
    ("made", "alarm"),
    [
        ("(2 * x + 3) * grad_y", False),  # Inf, where autograd's two terms come to Inf - Inf
        ("x * grad_y + (x + 3) * grad_y", False),
        ("((2 * x + 3) * grad_y).nan_to_num(0, 0, 0)", True),
    ],
)
def test_the_formula_of_the_backward_decides_between_inf_and_nan(tmp_path, made, alarm):
    op = load_record(
        tmp_path,
        f"""
        op = Op(
            schema="bent(Tensor x) -> Tensor y",
            reference=lambda x: x * (x + 3),
            backward=lambda grad_y, x: {made},
        )
        """,
    )
    x = torch.tensor([-1.0, 1.0], requires_grad=True)
    grad = torch.tensor([math.inf, 1.0])
    right = (2 * x.detach() + 3) * grad
    assert right.tolist() == [math.inf, 5.0]
    check = functools.partial(check_backward, op, (x,), lambda o: grad)
    if not alarm:
        check()
        return
    with pytest.raises(compare.Mismatch, match="NaN or Inf"):
        check()


def welford(x):
    """In float32, term by term."""
    mean, squares = torch.zeros(len(x)), torch.zeros(len(x))
    for j in range(x.shape[1]):
        away = x[:, j] - mean
        mean = mean + away / (j + 1)
        squares = squares + away * (x[:, j] - mean)
    return squares / x.shape[1]


def by_squares(x):
    """The difference of two large numbers, of which nothing is left."""
    return x.square().mean(1) - x.mean(1).square()


@pytest.mark.parametrize("columns", [2, 17, 1000])
@pytest.mark.parametrize(("shift", "formula"), [(0, welford), (1e3, welford), (3e4, welford),
                                                (1e3, by_squares), (3e4, by_squares)])  # fmt: skip
def test_a_running_mean_is_right_and_a_difference_of_squares_is_not(
    tmp_path, columns, shift, formula
):
    op = load_record(
        tmp_path,
        """
        op = Op(
            schema="variance(Tensor x) -> Tensor y",
            reference=lambda x: x.var(-1, correction=0),
        )
        """,
    )
    x = torch.randn(200, columns, generator=torch.Generator().manual_seed(0)) + shift
    check = functools.partial(check_forward, op, (x,), run=formula)
    if formula is welford:
        check()
        return
    with pytest.raises(compare.Mismatch, match=r"(1\d\d|200) of 200 elements are wrong"):
        check()


@pytest.mark.parametrize("n", [257, 2000, 10000])
@pytest.mark.parametrize("matrix", [False, True], ids=["vector", "matrix"])
def test_products_may_be_added_one_by_one(tmp_path, n, matrix):
    """Of equal terms many roundings have the same sign: n of them, not the root of n."""
    op = load_record(
        tmp_path,
        """
        op = Op(schema="products(Tensor a, Tensor b) -> Tensor y", reference=lambda a, b: a @ b)
        """,
    )
    values = torch.rand(20, generator=torch.Generator().manual_seed(0))
    a, b = values[:, None].expand(20, n), torch.full((n, 2) if matrix else (n,), 0.7)

    def serial(a, b):
        terms = a[:, None] * b.t() if matrix else a * b
        return torch.from_numpy(np.add.accumulate(terms.numpy(), axis=-1)[..., -1].copy())

    def short(a, b):  # some terms are left out
        return serial(a[:, : n - n // 200], b[: n - n // 200])

    check_forward(op, (a, b), run=serial)
    with pytest.raises(compare.Mismatch):
        check_forward(op, (a, b), run=short)


def serial_mean(x):
    return np.add.accumulate(x.numpy(), axis=-1)[..., -1:] / np.float32(x.shape[-1])


@pytest.mark.parametrize("power", [1, 2, 3])
@pytest.mark.parametrize("factor", [1, 5])
def test_the_rounding_of_a_sum_may_be_raised_to_a_power(tmp_path, power, factor):
    """Of equal numbers the rounding of their mean is left; five times that is too much."""
    op = load_record(
        tmp_path,
        f"""
        def reference(x):
            return (x - x.mean(-1, keepdim=True)).pow({power}).mean(-1)

        op = Op(schema="moment(Tensor x) -> Tensor y", reference=reference)
        """,
    )
    x = (torch.rand(9, 1, generator=torch.Generator().manual_seed(0)) + 1).expand(9, 2000)

    def moment(x):
        away = torch.from_numpy(x.numpy() - serial_mean(x)) * factor
        return away.pow(power).mean(-1)

    if factor == 1:
        check_forward(op, (x,), run=moment)
        return
    with pytest.raises(compare.Mismatch):
        check_forward(op, (x,), run=moment)


@pytest.mark.parametrize("shift", [0, -5.5, 30])
def test_logarithms_of_running_sums_are_rounded_at_every_step(tmp_path, shift):
    op = load_record(
        tmp_path,
        """
        op = Op(schema="logs(Tensor x) -> Tensor y", reference=lambda x: x.logcumsumexp(-1))
        """,
    )
    x = torch.randn(20, 257, generator=torch.Generator().manual_seed(0)) + shift
    serial = torch.from_numpy(np.logaddexp.accumulate(x.numpy(), axis=1))
    check_forward(op, (x,), run=lambda x: serial)
    with pytest.raises(compare.Mismatch):
        check_forward(op, (x,), run=lambda x: serial * (1 + 2**-14))


@pytest.mark.parametrize("seed", [0, 3, 6, 9, 11])
@pytest.mark.nightly
def test_second_derivatives_may_have_the_roundings_of_the_backwards_formula(seed):
    """It is what the op differentiates; autograd of the forward rounds to bfloat16 elsewhere."""
    (row,) = find(["double-backward"])
    result = worker.run(row, Trial(discover.find("rope"), Place("cpu"), seed))
    assert result.outcome == PASSED, result.text


@pytest.mark.parametrize(("off", "outcome"), [(0.0, PASSED), (0.02, FAILED)])
def test_but_a_wrong_formula_of_the_backward_has_none(tmp_path, off, outcome):
    op = load_record(
        tmp_path,
        f"""
        op = Op(
            schema="cubed(Tensor x) -> Tensor y",
            reference=lambda x: x * x * x,
            backward=lambda grad_y, x: grad_y * x * (3 * x + {off}),
            cases=lambda make: [(make(40, 9),)],
        )
        """,
    )
    (row,) = find(["double-backward"])
    result = worker.run(row, Trial(op, Place("cpu")))
    assert result.outcome == outcome, result.text
    assert outcome == PASSED or "second derivative by x of cubed: error" in result.text


def test_equal_values_are_rounded_alike():
    """So a row that is repeated 256 times errs by as much as one, not by a sixteenth."""
    x = torch.randn(8, dtype=torch.bfloat16).expand(256, 8)
    with NarrowRounding(seed=1):
        rounded = x * x
    with NarrowRounding(seed=2):
        others = x * x
    assert all(torch.equal(rounded[0], row) for row in rounded)
    assert not torch.equal(rounded, others)
    off = (rounded[0].double() - x[0].double() ** 2) / x[0].double() ** 2
    assert 2**-12 < float(off.abs().max()) <= 2**-7


@pytest.mark.parametrize(("more", "outcome"), [("", PASSED), (" + torch.rand(())", FAILED)])
def test_a_batch_of_bytes_alone_has_no_gradient(tmp_path, more, outcome):
    """The row batches all tensors, then the first, which may have none."""
    op = load_record(
        tmp_path,
        f"""
        op = Op(
            schema="times(Tensor bits, Tensor x) -> Tensor y",
            reference=lambda bits, x: bits * x{more},
            own_dtypes={{"bits": (torch.uint8,)}},
            cases=lambda make: [(torch.arange(9, dtype=torch.uint8), make(9))],
        )
        """,
    )
    (row,) = find(["vmap"])
    result = worker.run(row, Trial(op, Place("cpu")))
    assert result.outcome == outcome, result.text
