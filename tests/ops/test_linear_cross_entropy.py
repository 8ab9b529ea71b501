# SPDX-License-Identifier: Apache-2.0
"""linear_cross_entropy and its module against torch in float64."""

from __future__ import annotations

import functools

import pytest
import torch
from linear_losses import agree, drawn, each_choice, each_reduction, ours, truth
from op_cases import each_device, each_dtype, record
from torch.nn import functional

import opforge
from opforge import Make
from opforge.ops.families.losses import in_reach
from opforge.truth import cases, compare, inputs


@each_device
@each_dtype
@each_reduction
def test_it_is_that_of_torch(device, dtype, reduction):
    agree(*drawn(device, 7, 8, 33, dtype, ignored=0), chunk=3, reduction=reduction)
    leaves, target = drawn(device, 12, 16, 40, dtype, bias=False)
    found = agree(leaves, target, chunk=4, reduction=reduction)
    assert (target == -100).any()
    assert not found[0][target == -100].any()


@each_device
@each_reduction
@pytest.mark.parametrize("options", [{"label_smoothing": 0.1}, {"z_loss": 1e-2}])
def test_smoothing_and_z_loss(device, reduction, options):
    leaves, target = drawn(device, 9, 8, 50)
    agree(leaves, target, chunk=4, reduction=reduction, **options)
    agree(leaves, target.clamp(min=4), ignore_index=4, **options)


@each_device
@pytest.mark.parametrize("chunk", [1, 2, 5, 6, 11, 12, 100])
def test_chunks_of_any_size(device, chunk):
    agree(*drawn(device, 11, 8, 24), chunk=chunk)


@each_device
def test_one_class(device):
    for grad in agree(*drawn(device, 5, 4, 1, ignored=0)):
        assert not grad.any()


@each_device
def test_of_no_rows_the_mean_is_nan_and_the_gradients_are_zero(device):
    leaves, target = drawn(device, 5, 4, 9)
    loss = ours(leaves, torch.full_like(target, -100))
    assert loss.isnan()
    assert not any(g.any() for g in torch.autograd.grad(loss, leaves))
    leaves, target = drawn(device, 0, 4, 9)
    assert ours(leaves, target).isnan()
    loss = ours(leaves, target, reduction="sum")
    assert loss == 0
    assert not any(g.any() for g in torch.autograd.grad(loss, leaves))


@each_device
def test_a_factor_that_comes_late_is_not_rounded(device):
    """1 / 3 in bfloat16 is wrong by a thousandth; gradients of 1,000 rows would all lean by it."""
    leaves, target = drawn(device, 6, 8, 24, torch.bfloat16, bias=False, ignored=0)
    loss = ours(leaves, target, reduction="sum")
    whole = torch.autograd.grad(loss, leaves, retain_graph=True)
    third = torch.autograd.grad(loss, leaves, torch.tensor(1 / 3, device=loss.device))
    for a, b in zip(whole, third, strict=True):
        ratio = (b.double() / a.double())[a != 0].mean()
        assert abs(float(ratio) * 3 - 1) < 1e-3


@each_device
def test_leading_dims(device):
    leaves, target = drawn(device, 12, 8, 33, bias=False)
    x, weight = leaves
    shaped = opforge.linear_cross_entropy(x.unflatten(0, (3, 4)), weight, target.view(3, 4))
    assert torch.equal(shaped, ours(leaves, target))
    each = opforge.linear_cross_entropy(
        x.unflatten(0, (3, 4))[:, 1:], weight, target.view(3, 4)[:, 1:], reduction="none"
    )
    right = truth(leaves, target, reduction="none").view(3, 4)[:, 1:]
    torch.testing.assert_close(each.double(), right, atol=1e-5, rtol=1e-5)
    one = opforge.linear_cross_entropy(x[1], weight, target.new_tensor(3), reduction="none")
    assert one.shape == ()


def test_only_what_requires_a_gradient_gets_one():
    (x, weight), target = drawn("cpu", 6, 8, 24, bias=False)
    for frozen, kept in ((weight, x), (x, weight)):
        (right,) = torch.autograd.grad(truth((x, weight), target), kept)
        frozen.requires_grad_(False)
        with torch.profiler.profile() as profile:
            (got,) = torch.autograd.grad(ours((x, weight), target), kept)
        torch.testing.assert_close(got, right)
        products = [e.name for e in profile.events() if e.name in ("aten::mm", "aten::addmm_")]
        assert products == (["aten::mm"] * 2 if kept is x else ["aten::mm", "aten::addmm_"])
        frozen.requires_grad_(True)
    with torch.no_grad():
        assert not ours((x, weight), target).requires_grad


def test_gradients_can_be_taken_twice_and_differentiated():
    leaves, target = drawn("cpu", 6, 5, 9, torch.float64)
    loss = ours(leaves, target, chunk=4)
    first, second = (torch.autograd.grad(loss, leaves, retain_graph=True) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    twice = []
    for loss in (ours(leaves, target, chunk=4), truth(leaves, target)):
        grads = torch.autograd.grad(loss, leaves, create_graph=True)
        twice.append(torch.autograd.grad(sum(g.square().sum() for g in grads), leaves))
    for a, b in zip(*twice, strict=True):
        torch.testing.assert_close(a, b)


@each_choice
@each_reduction
def test_compiled_in_one_graph(reduction, low_memory):
    leaves, target = drawn("cpu", 7, 8, 24)
    options = {"reduction": reduction, "chunk": 3, "low_memory": low_memory}
    compiled = torch.compile(
        lambda leaves, target: ours(leaves, target, **options).sum(),
        backend="aot_eager",
        fullgraph=True,
    )
    right = truth(leaves, target, reduction=reduction).sum()
    loss = compiled(leaves, target)
    torch.testing.assert_close(loss.double(), right, atol=1e-5, rtol=1e-5)
    expected = torch.autograd.grad(right, leaves)
    for g, e in zip(torch.autograd.grad(loss, leaves), expected, strict=True):
        torch.testing.assert_close(g, e, atol=1e-5, rtol=1e-5)


def test_autocast_is_that_of_linear():
    leaves, target = drawn("cpu", 7, 16, 24)
    with torch.autocast("cpu", torch.bfloat16):
        got = ours(leaves, target)
        right = functional.cross_entropy(functional.linear(*leaves).float(), target)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, right)
    grads = torch.autograd.grad(got, leaves)
    assert all(g.dtype == torch.float32 for g in grads)


@each_device
def test_the_op_gives_nan_for_a_label_out_of_range(device):
    leaves, target = drawn(device, 6, 8, 33)
    target[2] = 33
    options = -100, 0.0, 0.0, 0, 4, False, 0
    loss = record("linear_cross_entropy")(*leaves[:2], target, leaves[2], *options)
    assert torch.equal(loss.isnan(), torch.arange(6, device=loss.device) == 2)


def test_on_the_cpu_a_label_out_of_range_is_an_error():
    leaves, target = drawn("cpu", 6, 8, 33)
    target[2] = 33
    expected = r"linear_cross_entropy: target holds 33 at \(2,\), .*class, 0 to 32, nor ignore"
    with pytest.raises(IndexError, match=expected):
        ours(leaves, target)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"label_smoothing": -0.1}, ValueError, "label_smoothing must be from 0 to 1, got -0.1"),
        ({"z_loss": -1.0}, ValueError, "z_loss must be finite and not negative, got -1.0"),
        (
            {"input": torch.ones(2, 3, 4), "target": torch.zeros(3, 2, dtype=torch.int64)},
            ValueError,
            r"target \(\.\.\.\), got \(2, 3, 4\), \(9, 4\) and \(3, 2\)",
        ),
        ({"reduction": "max"}, ValueError, "reduction must be .* got 'max'"),
        ({"chunk": -1}, ValueError, "chunk must be a number of rows, or 0 .* got -1"),
        ({"low_memory": "yes"}, TypeError, "low_memory must be True or False, got 'yes'"),
        ({"target": torch.zeros(4, dtype=torch.int64)}, ValueError, r"shape \(5,\) .* got \(4,\)"),
        ({"target": torch.zeros(5)}, TypeError, "target has dtype torch.float32; supported: int64"),
        (
            {"target": torch.full((5, 9), 1 / 9)},
            TypeError,
            r"linear_cross_entropy: target .* \(5, 9\): class probabilities are not supported",
        ),
        ({"weight": torch.zeros(9, 3)}, ValueError, r"got \(5, 4\) and \(9, 3\)"),
        ({"weight": torch.zeros(9, 4).half()}, TypeError, "weight is torch.float16; convert"),
        ({"bias": torch.zeros(8)}, ValueError, r"bias must have .* got \(8,\)"),
    ],
)
def test_what_makes_no_loss_is_refused(change, error, words):
    (x, weight, bias), target = drawn("cpu", 5, 4, 9, ignored=0)
    arguments = {"input": x, "weight": weight, "target": target, "bias": bias, **change}
    with pytest.raises(error, match=words):
        opforge.linear_cross_entropy(**arguments)


@each_device
def test_the_module(device):
    leaves, target = drawn(device, 6, 8, 33)
    module = opforge.nn.LinearCrossEntropyLoss(label_smoothing=0.1, reduction="sum", chunk=4)
    got = module(*leaves[:2], target, leaves[2])
    assert torch.equal(got, ours(leaves, target, label_smoothing=0.1, reduction="sum", chunk=4))
    assert "chunk=4, low_memory=False" in repr(module)
    low = opforge.nn.LinearCrossEntropyLoss(chunk=2, low_memory=True)
    found = torch.autograd.grad(low(*leaves[:2], target, leaves[2]), leaves)
    right = torch.autograd.grad(ours(leaves, target, chunk=2, low_memory=True), leaves)
    assert all(torch.equal(a, b) for a, b in zip(found, right, strict=True))
    with pytest.raises(ValueError, match=r"class weights are not supported; use torch\.nn"):
        opforge.nn.LinearCrossEntropyLoss(torch.ones(4))


def test_a_record_that_is_composed_composes_its_backward():
    from opforge.errors import RecordError
    from opforge.op import Op
    from opforge.registration.register import register

    half = Op(
        schema="half_composed(Tensor x) -> Tensor y",
        reference=torch.relu,
        composed=torch.relu,
        namespace="opforge_test_composed",
    )
    with pytest.raises(RecordError, match="half_composed is composed, but its backward is not"):
        register(half)


def test_strides_beyond_32_bits_do_not_reach_a_product():
    """Nor does that of one row, which does not count, and which contiguous() would leave."""
    near = torch.zeros(2, 5)
    assert in_reach(near) is near
    assert in_reach(torch.empty_strided((1, 5), (2**32, 1))).stride() == (5, 1)


@pytest.mark.parametrize("which", range(4))  # mean, with low_memory, sum, none with low_memory
@pytest.mark.parametrize("subnormal", [0, 1])
@pytest.mark.nightly
def test_what_rounding_twice_does_to_subnormal_gradients_is_allowed_for(which, subnormal):
    """The gradients kept are rounded before the factor comes, chunks before they are added."""
    op = record("linear_cross_entropy")
    case = list(list(op.iter_cases(Make(torch.bfloat16)))[which])
    case[subnormal] = (case[subnormal].double() * 2**-129).bfloat16()
    leaves = cases.as_leaves(tuple(case))
    factors = functools.partial(inputs.random_gradient, seed=0)
    cases.check_backward(op, leaves, factors)

    def off_by_16(*args):
        loss = op(*args)
        assert all(a.requires_grad for a in args[:2])
        args[1 - subnormal].register_hook(lambda grad: grad + 2.0**-129)
        return loss

    with pytest.raises(compare.Mismatch, match="is allowed"):
        cases.check_backward(op, leaves, factors, run=off_by_16)
