# SPDX-License-Identifier: Apache-2.0
"""The rule for the allowed error, and the words for what is wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from helpers import compared

from opforge import Op
from opforge.truth import cases, compare, pattern


def mask(*shape: int, at: object) -> torch.Tensor:
    wrong = torch.zeros(shape, dtype=torch.bool)
    wrong[at] = True
    return wrong


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (mask(4, 8, at=...), "everywhere"),
        (mask(1, at=...), "in its only element"),
        (mask(4, 8, at=(2, 3)), "nowhere else"),
        (mask(4, 8, at=(slice(None), slice(5, None))),
         "only in the last 3 columns (from 5 on) of every row"),
        (mask(4, 8, at=(slice(None), 0)), "only in column 0 of every row"),
        (mask(70000, 2, at=slice(65536, None)), "only in the last 4464 rows (from 65536 on)"),
        (mask(6, 5, at=slice(0, 2)), "only in the first 2 rows"),
        (mask(6, 5, at=slice(2, 4)), "only in rows 2 to 3"),
        (mask(6, 5, at=3), "only in row 3"),
        (mask(64, at=slice(None, None, 4)), "in every 4. element, from 0 on"),
        (mask(3, 8, at=(slice(None), slice(1, None, 2))),
         "in every 2. column, from 1 on of every row"),
        (mask(4, 8, at=(slice(1, 3), slice(2, 4))), "only in rows 1 to 2, only in columns 2 to 3"),
        (mask(9, 5, at=[1, 2, 7]), "in 3 of 9 rows, 1 to 7"),
        (mask(100, at=[3, 5, 20]), "scattered from element 3 to 20"),
        (mask(2, 3, 4, at=(slice(None), slice(None), 3)), "only in column 3 of every row"),
    ],
)  # fmt: skip
def test_patterns_in_words(wrong, words):
    assert pattern.describe(wrong) == words


def test_what_is_within_the_rule_passes():
    x = torch.rand(100) + 0.5
    compared(x)
    compared(x.bfloat16(), truth=x.double())  # rounded to nearest
    compared(x + 7e-4, x, spread=1e-4)
    compared((x + 0.01).bfloat16(), x.bfloat16(), x.double(), narrow=3e-3)


@pytest.mark.parametrize(
    ("got", "truth", "spreads"),
    [
        (torch.nextafter(torch.ones(3), torch.tensor(2.0)), torch.ones(3), {}),  # an ulp too far
        (torch.ones(3) + 1e-3, torch.ones(3), {"spread": 1e-4}),
        (torch.ones(3) + 1e-3, torch.ones(3), {"narrow": 1e-3}),  # float32 has no narrow ones
        (torch.full((3,), 1.0).bfloat16(), torch.full((3,), 1.005), {}),  # truncated
        (torch.ones(3).bfloat16() * 1.1, torch.ones(3), {"narrow": 1.5e-2}),
    ],
)
def test_what_is_beyond_the_rule_fails(got, truth, spreads):
    with pytest.raises(compare.Mismatch, match="is allowed"):
        compared(got, truth.to(got.dtype), truth.double(), **spreads)


def test_what_pytorch_makes_of_the_formula_is_right_but_nothing_near_it():
    truth = torch.tensor([1.0, 2.0], dtype=torch.float64)
    theirs = torch.tensor([1.0, 2.5])  # a formula that magnifies roundings
    compared(torch.nextafter(theirs, torch.tensor([1.0, 9.0])), theirs, truth)
    with pytest.raises(compare.Mismatch, match=r"error 0.499 where .* got 2.499"):
        compared(torch.tensor([1.0, 2.499]), theirs, truth)


def test_one_wrong_element_is_found_and_named():
    truth = torch.zeros(300, 1000)
    got = truth.clone()
    got[17, 77] = 1e-6
    with pytest.raises(compare.Mismatch) as failure:
        compared(got, truth)
    text = str(failure.value)
    assert "error 1e-06 where 7.01e-46 is allowed, at (17, 77): got 1e-06, " in text
    assert "truth 0, PyTorch has 0; 1 of 300000 elements are wrong, nowhere else" in text


def test_nan_and_inf_come_first():
    truth = torch.ones(4, 8)
    got = truth.clone()
    got[:, 7] = float("nan")
    got[0, 0] = 2.0
    with pytest.raises(
        compare.Mismatch,
        match=r"NaN or Inf where PyTorch has none, at \(0, 7\): "
        r"got nan, PyTorch has 1\.0; 4 of 32 .* only in column 7 of every row",
    ):
        compared(got, truth)
    torchs = truth.clone()
    torchs[2, 2] = float("inf")
    with pytest.raises(compare.Mismatch, match=r"differ from PyTorch's, at \(2, 2\): got 1\.0, "):
        compared(truth, torchs)
    compared(torchs, torchs)


def test_the_worst_is_the_one_furthest_beyond_what_is_allowed():
    truth = torch.full((10,), 1.0)
    got = truth.clone()
    got[3], got[8] = 1.5, 2.0
    with pytest.raises(compare.Mismatch, match=r"at \(8,\): got 2, truth 1, .*2 of 10 elements"):
        compared(got, truth)


def test_shape_and_dtype_are_compared():
    x = torch.ones(3)
    with pytest.raises(compare.Mismatch, match=r"shape \(3,\), not \(4,\)"):
        compared(x, x, torch.ones(4))
    with pytest.raises(compare.Mismatch, match=r"dtype torch.float32, not torch.float64"):
        compared(x, x.double(), x)


def test_infinite_terms_in_any_order_come_to_anything_that_is_not_finite():
    got, torchs = torch.tensor([float("inf"), 1.0]), torch.tensor([float("nan"), 1.0])
    with pytest.raises(compare.Mismatch, match="NaN or Inf differ from PyTorch's"):
        compared(got, torchs, torchs.double())
    compared(got, torchs, torchs.double(), any_order=True)
    for left, right in ((got, got.nan_to_num(posinf=2.0)), (got.nan_to_num(posinf=2.0), got)):
        with pytest.raises(compare.Mismatch, match="NaN or Inf"):
            compared(left, right, right.double(), any_order=True)


def large_sum(op_sum: Callable[[torch.Tensor], torch.Tensor]) -> tuple[Op, tuple[torch.Tensor]]:
    op = Op(schema="large_sum(Tensor x) -> Tensor y", reference=op_sum, rowwise=True)
    return op, (torch.randn(1100, 1000),)


def test_a_large_case_of_a_quick_check_is_compared_roughly():
    op, case = large_sum(lambda x: x * 3)
    right = op.reference(*case)
    truth = cases.true_outputs(op, case)
    truth.check([right * (1 + 2**-16)], rough=True)
    with pytest.raises(compare.Mismatch):
        truth.check([right * (1 + 2**-16)])
    wrong = right.clone()
    wrong[1099, 999] += 0.1
    with pytest.raises(compare.Mismatch, match=r"at \(1099, 999\).*1 of 1100000 elements"):
        truth.check([wrong], rough=True)


def test_a_sum_that_cancels_is_right_also_roughly():
    op, _ = large_sum(lambda x: (x - x.mean(-1, keepdim=True)).sum(-1))
    case = (torch.randn(100, 1000),)
    right = (case[0] - case[0].mean(-1, keepdim=True)).flip(-1).cumsum(-1)[:, -1]
    cases.true_outputs(op, case).check([right], rough=True)
    with pytest.raises(compare.Mismatch):
        cases.true_outputs(op, case).check([right + 0.1], rough=True)
