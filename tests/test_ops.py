# SPDX-License-Identifier: Apache-2.0
"""Every built-in op against float64 truth: CPU kernels, simulated CUDA kernels, and a GPU's."""

from __future__ import annotations

import copy

import pytest
import torch
from op_cases import each_device, each_dtype, each_op, record

import opforge
from opforge.check import compare
from opforge.check.cases import (
    cast,
    check_backward,
    check_forward,
    differentiable,
    largest,
    terms,
)
from opforge.op import Make, as_tuple


@each_device
@each_dtype
@each_op
def test_forward_matches_truth(name, dtype, device):
    op = record(name)
    for case in op.iter_cases(Make(dtype, device)):
        outputs = check_forward(op, case)
        assert op.like is not None or all(o.is_contiguous() for o in outputs)


@each_device
@each_dtype
@each_op
def test_backward_matches_truth(name, dtype, device):
    op = record(name)
    torch.manual_seed(0)
    for case in op.iter_cases(Make(dtype, device, requires_grad=True)):
        check_backward(op, case)


@each_device
@each_op
def test_backward_takes_strided_gradients(name, device):
    """What torch.cat and .sum() hand back: narrow views and stride 0."""
    op = record(name)
    torch.manual_seed(0)

    def narrow(o):
        wide = torch.randn(*o.shape[:-1], o.shape[-1] + 3, dtype=torch.float64).to(o)
        return wide[..., 1 : o.shape[-1] + 1]

    def expanded(o):
        return torch.ones((), dtype=o.dtype, device=o.device).expand(o.shape)

    def transposed(o):
        return torch.randn(*reversed(o.shape)).to(o).permute(*reversed(range(o.dim())))

    for dtype in (torch.float32, torch.bfloat16):
        for make_grad in (narrow, expanded, transposed):
            for case in op.iter_cases(Make(dtype, device, requires_grad=True)):
                if as_tuple(op.reference(*case))[0].dim() > 0:
                    check_backward(op, case, make_grad)


@each_device
@each_dtype
@pytest.mark.parametrize("name", ["relu", "vector_add", "scale_bias_relu"])
def test_layouts_give_the_bits_of_the_contiguous_result(name, dtype, device):
    op, make = record(name), Make(dtype, device)
    x, other = make(6, 10, 14), make(6, 10, 14)
    layouts = {
        "transposed": lambda t: t.transpose(0, 2).contiguous().transpose(0, 2),
        "stepped": lambda t: torch.stack([t, t], -1)[..., 0],
        "offset": lambda t: torch.cat([t.flatten()[:1], t.flatten()])[1:].view(t.shape),
        "padded rows": lambda t: torch.nn.functional.pad(t, (1, 2))[..., 1:-2],
    }
    arguments = {"relu": (x,), "vector_add": (x, other), "scale_bias_relu": (x, make(14), 0.75)}[
        name
    ]
    plain = op(*arguments)
    for label, change in layouts.items():
        changed = (change(arguments[0]), *arguments[1:])
        assert torch.equal(op(*changed), plain), label


@each_device
@each_dtype
@pytest.mark.parametrize("size", [1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 1023, 1025])
def test_sizes_around_the_vector_width(size, dtype, device):
    make = Make(dtype, device)
    x, bias = make(5, size), make(size)
    assert torch.equal(opforge.relu(x), torch.relu(x))
    assert torch.equal(opforge.vector_add(x, bias), x + bias)
    scaled = opforge.scale_bias_relu(x, bias, 0.5)
    exact = torch.relu(x.double() * 0.5 + bias.double())
    compare.check(scaled, torch.relu(x * 0.5 + bias), exact, k=2)
    for dim in (0, 1, None):
        got, theirs = opforge.reduce_sum(x, dim), torch.sum(x) if dim is None else torch.sum(x, dim)
        exact = torch.sum(x.double()) if dim is None else torch.sum(x.double(), dim)
        compare.check(got, theirs, exact, k=2, summed=5 * size, scale=largest([x]))


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
def test_one_nan_stays_where_it_is(device):
    x = torch.randn(64, 129, device=device)
    x[17, 77] = float("nan")
    bias = torch.zeros(129, device=device)
    for y in (opforge.relu(x), opforge.vector_add(x, bias), opforge.scale_bias_relu(x, bias, 2.0)):
        assert torch.equal(y.isnan(), x.isnan())
    assert opforge.reduce_sum(x, 1).isnan().nonzero().tolist() == [[17]]
    assert opforge.reduce_sum(x, 0).isnan().nonzero().tolist() == [[77]]


@each_device
def test_more_than_65535_rows_and_long_rows(device):
    for shape in [(70_001, 3), (3, 70_001)]:
        x = torch.randn(shape, device=device, requires_grad=True)
        bias = torch.randn(shape[1], device=device, requires_grad=True)
        check_backward(record("scale_bias_relu"), (x, bias, 1.25))
        for dim in (None, [0], [1]):
            case = (x.detach(), dim, False)
            got = opforge.reduce_sum(*case)
            theirs, exact = (record("reduce_sum").reference(t, dim, False) for t in (x, x.double()))
            compare.check(got, theirs, exact, 2, terms(case, got), largest([x]))


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
            got, theirs = opforge.reduce_sum(x, dim), x.sum(dim)
            compare.check(got, theirs, x.double().sum(dim), 2, terms((x,), got), largest([x]))
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
@each_op
def test_inputs_are_left_alone(name, device):
    op = record(name)
    for case in op.iter_cases(Make(torch.float32, device)):
        before = copy.deepcopy(case)
        op(*case)
        for a, b in zip(differentiable(case), differentiable(before), strict=True):
            assert torch.equal(a, b)


@each_device
@each_op
def test_the_same_bits_every_time(name, device):
    op = record(name)
    case = max(
        op.iter_cases(Make(torch.float32, device, requires_grad=True)),
        key=lambda c: sum(t.numel() for t in differentiable(c)),
    )

    def once():
        leaves = cast(case, torch.float32)
        result = op(*leaves)
        result.backward(torch.ones_like(result))
        return [result.detach(), *(t.grad for t in differentiable(leaves))]

    first = once()
    for _ in range(100):
        assert all(torch.equal(a, b) for a, b in zip(once(), first, strict=True))


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
