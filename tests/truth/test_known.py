# SPDX-License-Identifier: Apache-2.0
"""Truths are found once for the same values."""

from __future__ import annotations

import pytest
import torch
from helpers import load_record

from opforge.truth import cases, compare

RECORD = """
op = Op(
    schema="doubled(Tensor x, float by) -> Tensor y",
    reference=lambda x, by: x * by,
    cases=lambda make: [(make(4, 6), 2.0)],
)
"""


@pytest.fixture
def op(tmp_path):
    return load_record(tmp_path, RECORD)


def test_the_same_values_in_another_layout_have_the_same_truth(op):
    x = torch.randn(4, 6)
    first = cases.true_outputs(op, (x, 2.0))
    assert cases.true_outputs(op, (x.t().contiguous().t(), 2.0)) is first
    assert cases.true_outputs(op, (torch.randn(9, 6)[:4].copy_(x), 2.0)) is first
    grads = [torch.randn(4, 6)]
    leaf = x.clone().requires_grad_()
    gradients = cases.true_gradients(op, (leaf, 2.0), grads)
    assert gradients is not first
    assert cases.true_gradients(op, (leaf, 2.0), [grads[0].t().contiguous().t()]) is gradients


def test_other_values_have_not(op):
    x = torch.zeros(3)
    first = cases.true_outputs(op, (x, 2.0))
    others = [(-x, 2.0), (x, 2), (x, 3.0), (x.double(), 2.0), (x.view(3, 1), 2.0)]
    others.append((x.clone().requires_grad_(), 2.0))
    assert all(cases.true_outputs(op, other) is not first for other in others)
    grads = [torch.ones(3)]
    second = cases.true_gradients(op, others[-1], grads)
    assert cases.true_gradients(op, others[-1], [2 * grads[0]]) is not second


def test_a_tensor_that_is_changed_afterwards_does_not_change_the_truth(op):
    x = torch.rand(5) + 1
    right = x * 2.0
    truth = cases.true_outputs(op, (x, 2.0))
    x.fill_(7e6)
    truth.check([torch.nextafter(right, right + 1)])  # which asks for the spread
    with pytest.raises(compare.Mismatch):  # of the values as they were
        truth.check([right * (1 + 2**-10)])
    with pytest.raises(compare.Mismatch):
        cases.true_outputs(op, (x, 2.0)).check([right])


def test_old_truths_are_forgotten(op):
    x = torch.randn(1000)
    first = cases.true_outputs(op, (x, 2.0))
    for i in range(10):
        cases.true_outputs(op, (torch.full((1 << 18,), float(i)), 2.0))
    assert cases.true_outputs(op, (x, 2.0)) is not first
