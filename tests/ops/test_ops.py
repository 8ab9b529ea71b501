# SPDX-License-Identifier: Apache-2.0
"""The built-in ops, beside the rows of `opforge check`: what is special about each."""

from __future__ import annotations

import pytest
import torch
from op_cases import each_device, each_dtype

import opforge
from opforge import discover
from opforge.truth.cases import check_forward


@each_device
@each_dtype
def test_special_values_are_those_of_the_reference(dtype, device):
    inf, nan, tiny = float("inf"), float("nan"), torch.finfo(dtype).tiny
    values = [0.0, -0.0, inf, -inf, nan, tiny / 4, -tiny / 4, torch.finfo(dtype).max, 1.0, -1.0]
    x = torch.tensor(values * 3, dtype=dtype, device=device).requires_grad_()
    # torch's own relu on a GPU turns -0.0 into 0.0; ours keeps the sign everywhere.
    expected = torch.where(x < 0, torch.zeros_like(x), x)
    y = opforge.relu(x)
    assert torch.equal(y.isnan(), expected.isnan())
    assert torch.equal(y.nan_to_num(nan=3.0), expected.nan_to_num(nan=3.0))
    assert torch.equal(torch.signbit(y[:2]), torch.tensor([False, True], device=device))
    y.backward(torch.ones_like(y))
    ours = x.grad.clone()
    x.grad = None
    torch.relu(x).backward(torch.ones_like(y))
    assert torch.equal(ours, x.grad)
    total = opforge.reduce_sum(x[:3].detach())
    assert total.item() == inf
    assert opforge.reduce_sum(x.detach()).isnan()
    huge = torch.tensor([torch.finfo(dtype).max] * 2, dtype=dtype, device=device)
    assert opforge.vector_add(huge, huge).isinf().all()


@each_device
def test_signed_zeros_survive_broadcasting(device):
    zero = torch.tensor(-0.0, device=device)
    assert torch.signbit(opforge.relu(zero.expand(9))).all()
    assert torch.signbit(opforge.vector_add(zero.expand(3, 9), zero.expand(3, 1))).all()


@each_device
def test_sums_of_short_rows_and_low_matrices(device):
    """Runs shorter than a vector, columns of a batch of low matrices, sums of a scalar."""
    for shape, dim in [
        ((5000, 1), 1),
        ((5000, 3), 1),
        ((700, 16, 17), 1),
        ((300, 8, 32), 1),
        ((2, 3000, 64), (0, 2)),
        ((40, 100, 33), 1),
    ]:
        for dtype in (torch.float32, torch.bfloat16):
            x = torch.randn(shape, device=device, dtype=dtype)
            dims = list(dim) if isinstance(dim, tuple) else [dim]
            check_forward(discover.find("reduce_sum"), (x, dims, False))
    x = torch.tensor(2.0, device=device, requires_grad=True)
    opforge.reduce_sum(x, 0).backward()
    assert x.grad.item() == 1.0


@each_device
def test_more_than_64_dimensions_are_refused(device):
    x = torch.ones([1] * 65, device=device)
    for call in (opforge.relu, opforge.reduce_sum, lambda t: opforge.vector_add(t, t)):
        with pytest.raises(RuntimeError, match="more than 64 dims are not supported"):
            call(x)


@each_device
def test_many_dimensions(device):
    """More dims than a kernel's index has room for."""
    x = torch.randn([2] * 14, device=device).permute(*torch.randperm(14).tolist())[..., 0]
    other = torch.randn([2, 1] * 6 + [2], device=device)
    assert torch.equal(opforge.relu(x), torch.relu(x))
    assert torch.equal(opforge.vector_add(x, other), x + other)
    for dims in ([0, 2, 4, 6, 8, 10, 12], [1, 3, 5, 7, 9, 11]):
        torch.testing.assert_close(opforge.reduce_sum(x, dims), x.sum(dims), atol=2e-5, rtol=1e-5)


@each_device
def test_sums_do_not_depend_on_the_number_of_threads(device):
    x = torch.randn(3000, 700, device=device)
    threads = torch.get_num_threads()
    try:
        results = []
        for n in (1, 2):
            torch.set_num_threads(n)
            results.append([opforge.reduce_sum(x, d) for d in (None, 0, 1)])
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
