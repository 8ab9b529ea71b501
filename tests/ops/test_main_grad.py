# SPDX-License-Identifier: Apache-2.0
"""linear with main_grad: backwards add the gradient of the weight to a float32 tensor."""

from __future__ import annotations

import pytest
import torch
from linear_layers import ACTIVATIONS, near
from op_cases import each_real_device
from torch.nn import functional

import opforge


def drawn(dtype, rows=17, features=12, outputs=20):
    generator = torch.Generator().manual_seed(rows)
    shapes = (rows, features), (outputs, features), (outputs,), (rows, outputs)
    return [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradients_are_those_of_linear_and_the_weight_s_are_added(activation, dtype):
    x, weight, bias, residual = drawn(dtype)
    wide = torch.promote_types(dtype, torch.float32)
    total = torch.zeros_like(weight, dtype=wide, requires_grad=False)
    right = torch.zeros_like(weight, dtype=torch.float64, requires_grad=False)
    for factor in (1.0, -0.5, 2.0):
        plain, ours = (
            opforge.linear(x, weight, bias, activation, residual, main_grad=m)
            for m in (None, total)
        )
        torch.testing.assert_close(ours, plain, rtol=0, atol=0)
        grad = torch.full_like(plain, factor)
        inputs = [x, bias, residual]
        expected = torch.autograd.grad(plain, inputs, grad)
        for got, one in zip(torch.autograd.grad(ours, inputs, grad), expected, strict=True):
            near(got, one.double(), dtype)
        leaf = weight.detach().double().requires_grad_()
        z = functional.linear(x.double(), leaf, bias.double())
        ACTIVATIONS[activation](z).backward(grad.double())
        right += leaf.grad
    assert weight.grad is None
    near(total, right, dtype)


@each_real_device
def test_sums_keep_float32_digits_of_16_bit_products(device):
    x, weight = (t.detach().to(device).requires_grad_() for t in drawn(torch.bfloat16, 64)[:2])
    total = torch.zeros_like(weight, dtype=torch.float32, requires_grad=False)
    grads = [torch.randn(64, 20).bfloat16().to(device) for _ in range(4)]
    for grad in grads:
        opforge.linear(x, weight, main_grad=total).backward(grad)
    right = sum(g.double().t() @ x.detach().double() for g in grads)
    torch.testing.assert_close(total.double(), right, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("options", [{"scale": -1.5}, {"scale": 0.5, "clamp": (-0.2, 0.3)}])
@pytest.mark.parametrize("activation", [None, "silu", "relu"])
def test_factor_and_limits(activation, options):
    x, weight, bias, residual = drawn(torch.float64)
    total = torch.zeros_like(weight, requires_grad=False)
    grad = torch.randn(17, 20, dtype=torch.float64)
    plain = opforge.linear(x, weight, bias, activation, residual, **options)
    expected = torch.autograd.grad(plain, [x, weight, bias, residual], grad)
    opforge.linear(x, weight, bias, activation, residual, main_grad=total, **options).backward(grad)
    for got, right in zip([x.grad, total, bias.grad, residual.grad], expected, strict=True):
        torch.testing.assert_close(got, right)


def test_repeated_backwards_have_the_same_bits():
    totals = []
    for _ in range(2):
        x, weight, bias, _ = drawn(torch.bfloat16)
        total = torch.zeros_like(weight, dtype=torch.float32, requires_grad=False)
        for _ in range(3):
            opforge.linear(x, weight, bias, "gelu", main_grad=total).sum().backward()
        totals.append(total)
    assert torch.equal(*totals)
    assert totals[0].any()


def test_the_module_keeps_it_at_the_weight():
    torch.manual_seed(0)
    layer = opforge.nn.Linear(6, 4, dtype=torch.bfloat16, activation="silu", main_grad=True)
    x = torch.randn(3, 6).bfloat16()
    layer(x).sum().backward()
    assert layer.weight.grad is None
    assert layer.bias.grad is not None
    first = layer.weight.main_grad.clone()
    assert first.dtype == torch.float32
    assert first.any()
    layer(x).sum().backward()
    torch.testing.assert_close(layer.weight.main_grad, 2 * first)
    mine = layer.weight.main_grad = torch.ones(4, 6)
    layer(x).sum().backward()
    torch.testing.assert_close(mine, first + 1)
    assert "main_grad=True" in repr(layer)


def test_two_layers_can_share_a_weight():
    torch.manual_seed(0)
    one, other = (opforge.nn.Linear(5, 5, bias=False, main_grad=True) for _ in range(2))
    other.weight = one.weight
    x = torch.randn(3, 5)
    other(one(x)).sum().backward()
    leaf = one.weight.detach().clone().requires_grad_()
    functional.linear(functional.linear(x, leaf), leaf).sum().backward()
    torch.testing.assert_close(one.weight.main_grad, leaf.grad)


def test_compiled_models_leave_it_out_of_the_graph():
    layer = opforge.nn.Linear(6, 4, main_grad=True)
    x = torch.randn(3, 6)
    layer(x).sum().backward()
    right = layer.weight.main_grad.clone()
    layer.weight.main_grad.zero_()
    compiled = torch.compile(lambda x: layer(x.relu() - (-x).relu()).sum(), backend="aot_eager")
    compiled(x).backward()
    torch.testing.assert_close(layer.weight.main_grad, right)


def test_no_gradient_no_change():
    x, weight, *_ = drawn(torch.float32)
    total = torch.zeros_like(weight, requires_grad=False)
    opforge.linear(x, weight.detach(), main_grad=total).sum().backward()
    assert x.grad is not None
    assert not total.any()


def test_what_is_refused():
    x, weight, bias, _ = drawn(torch.bfloat16)
    run = opforge.linear
    with pytest.raises(ValueError, match=r"main_grad must be torch\.float32 .*got torch\.bfloat16"):
        run(x, weight, main_grad=torch.zeros_like(weight))
    with pytest.raises(ValueError, match=r"of the weight's shape \(20, 12\), got .* \(12, 20\)"):
        run(x, weight, main_grad=torch.zeros(12, 20))
    with pytest.raises(ValueError, match="must not require a gradient"):
        run(x, weight, main_grad=torch.zeros(20, 12, requires_grad=True))
    with pytest.raises(TypeError, match=r"x is torch\.bfloat16 but bias is torch\.float32"):
        run(x, weight, bias.float(), main_grad=torch.zeros(20, 12))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize(
    "make",
    [
        lambda **o: opforge.nn.MLP(6, 10, 5, **o),
        lambda **o: opforge.nn.MLP(6, 10, 5, activation="relu", **o),
        lambda **o: opforge.nn.GatedMLP(6, 10, bias=True, **o),
        lambda **o: opforge.nn.GatedMLP(6, 10, packed=True, **o),
    ],
)
def test_blocks_of_layers(make, dtype):
    torch.manual_seed(0)
    plain, ours = make(dtype=dtype), make(dtype=dtype, main_grad=True)
    ours.load_state_dict(plain.state_dict())
    x, other = (torch.randn(7, 6).to(dtype).requires_grad_() for _ in range(2))
    other.data.copy_(x.data)
    residual = torch.randn(7, 5 if isinstance(plain, opforge.nn.MLP) else 6).to(dtype)
    for _ in range(2):
        grad = torch.randn_like(residual)
        y, right = ours(x, residual), plain(other, residual)
        torch.testing.assert_close(y, right, rtol=0, atol=0)
        y.backward(grad)
        right.backward(grad)
    near(x.grad, other.grad.double(), dtype)
    for (name, got), expected in zip(ours.named_parameters(), plain.parameters(), strict=True):
        if name.endswith("weight"):
            assert got.grad is None
            assert got.main_grad.dtype == torch.promote_types(dtype, torch.float32)
        near(got.main_grad if name.endswith("weight") else got.grad, expected.grad.double(), dtype)
    assert "main_grad=True" in repr(ours)


def test_some_weights_of_a_block():
    torch.manual_seed(0)
    x, up, down = torch.randn(3, 4), torch.randn(6, 4), torch.randn(4, 6)
    leaves = [t.requires_grad_() for t in (x, up, down)]
    right = torch.autograd.grad(opforge.mlp(*leaves).sum(), leaves)
    total = torch.zeros(6, 4)
    opforge.mlp(*leaves, main_grad={"up_weight": total}).sum().backward()
    assert up.grad is None
    for got, expected in zip([x.grad, total, down.grad], right, strict=True):
        torch.testing.assert_close(got, expected)
    with pytest.raises(ValueError, match=r"has 'gate_weight'; the weights are up_weight, down_w"):
        opforge.mlp(*leaves, main_grad={"gate_weight": total})
    with pytest.raises(ValueError, match=r"main_grad\['down_weight'\] must be torch\.float32"):
        opforge.mlp(*leaves, main_grad={"down_weight": total})


def test_a_gradient_of_the_residual_alone():
    x, weight, residual = torch.randn(4, 6), torch.randn(3, 6), torch.randn(4, 3)
    total = torch.zeros_like(weight)
    for options in ({"activation": "gelu"}, {"clamp": (0.0, 1.0)}):
        leaf = residual.clone().requires_grad_()
        y = opforge.linear(x, weight, residual=leaf, main_grad=total, **options)
        assert torch.equal(torch.autograd.grad(y.sum(), leaf)[0], torch.ones(4, 3))
    assert not total.any()


def test_a_layer_makes_its_total_when_it_has_a_gradient_to_add():
    layer = opforge.nn.Linear(6, 3, main_grad=True)
    with torch.no_grad():
        layer(torch.randn(4, 6))
    assert not hasattr(layer.weight, "main_grad")
    layer(torch.randn(4, 6)).sum().backward()
    assert layer.weight.main_grad.dtype == torch.float32
    layer.double()
    layer(torch.randn(4, 6, dtype=torch.float64)).sum().backward()
    assert layer.weight.main_grad.dtype == torch.float64
