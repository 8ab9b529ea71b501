# SPDX-License-Identifier: Apache-2.0
"""linear beside the rows of `opforge check`: against torch in float64, its options, what is kept,
how many kernels run, and what is refused."""

from __future__ import annotations

import pytest
import torch
from linear_layers import ACTIVATIONS, each_device, near
from op_cases import each_dtype
from torch._subclasses import FakeTensorMode
from torch.nn import functional

import opforge
from opforge import sim


def drawn(device, rows, features, outputs, dtype=torch.float64):
    """x, weight, bias and residual, as leaves."""
    generator = torch.Generator().manual_seed(rows + features)

    def one(*shape, scale=1.0):
        values = torch.randn(shape, generator=generator, dtype=torch.float64) * scale
        return values.to(device, dtype).requires_grad_()

    weight = one(outputs, features, scale=features**-0.5)
    return one(rows, features), weight, one(outputs), one(rows, outputs)


def formula(x, weight, bias, residual, activation, scale=1.0, low=None, high=None):
    y = ACTIVATIONS[activation](functional.linear(x, weight, bias)) * scale
    y = y if low is None and high is None else y.clamp(low, high)
    return y if residual is None else y + residual


def check(tensors, activation, dtype, **options):
    """Values and gradients against the formula in float64."""
    given = [t for t in tensors if t is not None]
    tf32 = options.pop("tf32", False)
    low, high = options.get("clamp", (None, None))
    x, weight, bias, residual = tensors
    y = opforge.linear(x, weight, bias, activation, residual, tf32=tf32, **options)
    leaves = [t.detach().double().requires_grad_() for t in given]
    rest = iter(leaves)
    wide = [None if t is None else next(rest) for t in tensors]
    right = formula(*wide, activation, options.get("scale", 1.0), low, high)
    near(y, right, dtype)
    grad = torch.randn_like(y)
    found = torch.autograd.grad(y, given, grad)
    for got, expected in zip(found, torch.autograd.grad(right, leaves, grad.double()), strict=True):
        near(got, expected, dtype)


@each_device
@each_dtype
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_it_is_that_of_torch(activation, dtype, device):
    check(drawn(device, 70, 24, 40, dtype), activation, dtype)


@each_device
def test_factor_and_limits(device):
    tensors = drawn(device, 33, 24, 40, torch.float32)
    check(tensors, "silu", torch.float32, scale=-1.5, clamp=(-0.5, 0.25))
    check((*tensors[:2], None, None), None, torch.float32, clamp=(None, 0.5))
    # Values alone in 16 bits: where a rounded one meets a limit, its gradient may pass or not.
    tensors = drawn(device, 33, 24, 40, torch.bfloat16)
    wide = [t.double() for t in tensors]
    y = opforge.linear(*tensors[:3], "silu", tensors[3], scale=-1.5, clamp=(-0.5, 0.25))
    near(y, formula(*wide, "silu", -1.5, -0.5, 0.25), torch.bfloat16)


@each_device
def test_tf32_is_that_of_torch_but_for_its_rounding(device):
    check(drawn(device, 70, 24, 40, torch.float32), "gelu", torch.float16, tf32=True)


@each_device
@pytest.mark.parametrize("outputs", [40, 27])
def test_operands_in_any_order_and_unaligned(outputs, device):
    x, weight, bias, _ = drawn(device, 24, 33, outputs, torch.bfloat16)
    right = formula(x.double(), weight.double(), bias.double(), None, "relu")
    by_columns = x.detach().t().contiguous().t(), weight.detach().t().contiguous().t()
    for one in (x, by_columns[0]):
        for other in (weight, by_columns[1]):
            near(opforge.linear(one, other, bias, "relu"), right, torch.bfloat16)


def test_gradcheck():
    tensors = drawn("cpu", 5, 4, 3)
    run = lambda *t: opforge.linear(t[0], t[1], t[2], "gelu", t[3], scale=0.5)  # noqa: E731
    assert torch.autograd.gradcheck(run, tensors)
    assert torch.autograd.gradgradcheck(run, tensors)


def kept(activation, residual=None, **options):
    """The shapes of what a call keeps for its backward, besides what it was given."""
    x, weight, bias, _ = drawn("cpu", 6, 4, 3)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        y = opforge.linear(x, weight, bias, activation, residual, **options)
    known = {t.data_ptr() for t in (x, weight, bias)}
    shapes = [tuple(t.shape) for t in saved if t.numel() and t.data_ptr() not in known]
    return shapes, any(t.data_ptr() == y.data_ptr() for t in saved)


def test_no_more_is_kept_than_the_gradient_needs():
    assert kept(None) == ([], False)
    assert kept(None, scale=2.0) == ([], False)
    assert kept("gelu") == ([(6, 3)], False)
    assert kept("relu") == ([(6, 3)], True)  # the result itself
    assert kept("relu", torch.zeros(6, 3, dtype=torch.float64)) == ([(6, 3)], False)


def test_compiled_in_one_graph():
    tensors = drawn("cpu", 6, 8, 5, torch.float32)[:3]
    run = lambda *t: opforge.linear(*t, "gelu")  # noqa: E731
    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
    got, right = compiled(*tensors), run(*tensors)
    torch.testing.assert_close(got, right)
    pairs = (torch.autograd.grad(y.square().sum(), tensors) for y in (got, right))
    for a, b in zip(*pairs, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.sim
def test_one_kernel_makes_the_forward():
    x, weight, bias, residual = [t.detach() for t in drawn("cpu", 70, 64, 40, torch.bfloat16)]
    with sim.active("race", traffic=True) as calls:
        opforge.linear(x, weight, bias, "gelu", residual)
    (launch,) = calls[-1].launches
    assert "hopper_product" in launch.kernel
    assert launch.distinct_written == 70 * 40 * 2


def test_what_is_refused():
    x, weight = torch.randn(4, 6), torch.randn(8, 6)
    run = opforge.linear
    with pytest.raises(ValueError, match=r"x and of weight must agree.*pass weight\.t\(\)"):
        run(x, weight.t())
    with pytest.raises(ValueError, match=r"weight must be \(outputs, features\), got shape \(6,\)"):
        run(x, weight[0])
    with pytest.raises(ValueError, match=r"bias must have shape \(8,\).*got \(4,\)"):
        run(x, weight, torch.randn(4))
    with pytest.raises(ValueError, match=r"residual must have the shape of the result, \(4, 8\)"):
        run(x, weight, residual=torch.randn(8))
    with pytest.raises(ValueError, match=r"activation must be one of None, 'relu'.*got 'swish'"):
        run(x, weight, activation="swish")
    with pytest.raises(TypeError, match=r"x is torch\.float32 but weight is torch\.float64"):
        run(x, weight.double())
    with pytest.raises(ValueError, match=r"clamp must be \(low, high\) with low <= high"):
        run(x, weight, clamp=(1.0, 0.0))
    with pytest.raises(TypeError, match=r"clamp must be a pair \(low, high\)"):
        run(x, weight, clamp=1.0)
    with pytest.raises(TypeError, match=r"opforge\.linear: x must be a tensor, got list"):
        run([1.0], weight)
    with pytest.raises(TypeError, match="scale must be a number, got '2'"):
        run(x, weight, scale="2")
    with pytest.raises(ValueError, match="scale must be finite, got nan"):
        run(x, weight, scale=float("nan"))
    with pytest.raises(TypeError, match="tf32=True is for float32"):
        run(x.double(), weight.double(), tf32=True)


@each_device
@pytest.mark.parametrize(("rows", "features", "outputs"), [(0, 8, 4), (3, 0, 4), (3, 8, 0)])
def test_empty_dims(rows, features, outputs, device):
    x = torch.randn(rows, features, device=device, requires_grad=True)
    weight = torch.randn(outputs, features, device=device, requires_grad=True)
    y = opforge.linear(x, weight, torch.ones(outputs, device=device))
    assert y.shape == (rows, outputs)
    assert (y == 1).all() | (features > 0)
    grads = torch.autograd.grad(y.sum(), [x, weight])
    assert [g.shape for g in grads] == [x.shape, weight.shape]
    assert not any(g.any() for g in grads)


def test_a_weight_too_large_for_products_on_a_gpu_is_refused():
    with FakeTensorMode():
        x = torch.empty(3, 3, device="cuda", dtype=torch.float16)
        weight = torch.empty(2**31, 3, device="cuda", dtype=torch.float16)
        text = "2147483648 outputs of weight are too many for a product on a GPU.*in parts"
        with pytest.raises(ValueError, match=text):
            opforge.linear(x, weight)
