# SPDX-License-Identifier: Apache-2.0
"""fp8_linear, and mlp and modules made of it, beside the rows of `opforge check`: values and
gradients against casts by torch, how far they are from float64, what is kept and refused."""

from __future__ import annotations

import pytest
import torch
from linear_layers import ACTIVATIONS, each_device, near
from torch.nn import functional

import opforge

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
each_scaling = pytest.mark.parametrize("scaling", ["row", "tensor"])


def drawn(device, rows=70, features=144, outputs=40, dtype=torch.bfloat16):
    """x, weight, bias and residual, as leaves."""
    generator = torch.Generator().manual_seed(rows + features)

    def one(*shape, scale=1.0):
        values = torch.randn(shape, generator=generator, dtype=torch.float64) * scale
        return values.to(device, dtype).requires_grad_()

    weight = one(outputs, features, scale=features**-0.5)
    return one(rows, features), weight, one(outputs), one(rows, outputs)


def cast(x, dtype, scaling):
    """What remains of a matrix after a cast with scales, see test_quantize_fp8.py."""
    bits, scale = opforge.quantize_fp8(x.detach(), dtype, scaling)
    return bits.double() * scale.double()


@each_device
@each_scaling
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_each_product_is_that_of_the_casts(dtype, scaling, device):
    x, weight, bias, residual = drawn(device, dtype=dtype)
    y = opforge.fp8_linear(x, weight, bias, None, residual, scaling=scaling)
    right = cast(x, E4M3, scaling) @ cast(weight, E4M3, scaling).t()
    rough = torch.float16 if dtype == torch.float32 else dtype
    near(y, right + bias.double() + residual.double(), rough)
    grad = torch.randn(y.shape, generator=torch.Generator().manual_seed(0)).to(y)
    by_x, by_weight, by_bias, by_residual = torch.autograd.grad(
        y, [x, weight, bias, residual], grad
    )
    # Rows along the inner dim of each product have the scales.
    near(by_x, cast(grad, E5M2, scaling) @ cast(weight.t(), E4M3, scaling).t(), rough)
    near(by_weight, cast(grad.t(), E5M2, scaling) @ cast(x.t(), E4M3, scaling).t(), rough)
    near(by_bias, grad.double().sum(0), dtype)
    assert torch.equal(by_residual, grad)


@each_device
@each_scaling
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_errors_are_those_of_few_bits(activation, scaling, device):
    x, weight, bias, _ = drawn(device, 66, 256, 72)
    y = opforge.fp8_linear(x, weight, bias, activation, scaling=scaling)
    grad = torch.randn_like(y)
    found = [y, *torch.autograd.grad(y, [x, weight, bias], grad)]
    leaves = [t.detach().double().requires_grad_() for t in (x, weight, bias)]
    right = ACTIVATIONS[activation](functional.linear(*leaves))
    expected = [right, *torch.autograd.grad(right, leaves, grad.double())]
    for got, wide in zip(found, expected, strict=True):
        # E5M2 rounds by up to 1 / 8, on average by much less. A relu near 0 also flips.
        assert (got.double() - wide).norm() < (0.2 if activation == "relu" else 0.09) * wide.norm()
    assert (y.double() - right).norm() > 1e-3 * right.norm()


def test_a_weight_cast_once_gives_the_same_bits():
    x, weight, bias, _ = [t.detach() for t in drawn("cpu")]
    weight_q, weight_scale = opforge.quantize_fp8(weight)
    q, scale = opforge.quantize_fp8(x)
    y = opforge.scaled_linear(q, weight_q, scale, weight_scale, bias, "silu")
    assert torch.equal(y, opforge.fp8_linear(x, weight, bias, "silu"))


def kept(activation=None, frozen=(), **options):
    """Shapes and dtypes of what a call keeps for its backward, besides the parameters."""
    x, weight, bias, _ = drawn("cpu", 6, 20, 3)
    for tensor in frozen:
        {"x": x, "weight": weight, "bias": bias}[tensor].requires_grad_(False)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        y = opforge.fp8_linear(x, weight, bias, activation, **options)
    y.sum().backward()
    given = [t.grad is not None for t in (x, weight, bias)]
    assert given == [name not in frozen for name in ("x", "weight", "bias")]
    known = {t.data_ptr() for t in (weight, bias)}
    return sorted(
        (tuple(t.shape), str(t.dtype).removeprefix("torch."))
        for t in saved
        if t is not None and t.numel() and t.data_ptr() not in known
    )


def test_the_transpose_as_fp8_is_kept_in_place_of_x():
    transpose = [((20,), "float32"), ((20, 16), "uint8")]
    assert kept() == transpose
    assert kept("gelu") == sorted([*transpose, ((6, 3), "bfloat16")])
    assert kept(scaling="tensor") == [((1,), "float32"), ((20, 16), "uint8")]
    assert kept(frozen=["weight"]) == []
    assert kept("gelu", frozen=["weight"]) == [((6, 3), "bfloat16")]
    assert kept(frozen=["x"]) == transpose


def test_gradients_of_gradients_are_refused():
    x, weight, bias, _ = drawn("cpu", 6, 20, 3)
    y = opforge.fp8_linear(x, weight, bias)
    (grad,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="not supported for"):
        grad.sum().backward()


def test_compiled_in_one_graph():
    tensors = drawn("cpu", 6, 16, 5, torch.float32)[:3]
    run = lambda *t: opforge.fp8_linear(*t, "gelu")  # noqa: E731
    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
    got, right = compiled(*tensors), run(*tensors)
    torch.testing.assert_close(got, right)
    pairs = (torch.autograd.grad(y.square().sum(), tensors) for y in (got, right))
    for a, b in zip(*pairs, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("form", ["plain", "separate", "packed"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_mlp(activation, form):
    generator = torch.Generator().manual_seed(0)

    def one(*shape):
        values = torch.randn(shape, generator=generator) * shape[-1] ** -0.5
        return values.to(torch.bfloat16).requires_grad_()

    rows = 80 if form == "packed" else 40
    named = {"x": one(64, 48), "up_weight": one(rows, 48), "down_weight": one(24, 40)}
    named |= {"up_bias": one(rows), "down_bias": one(24), "residual": one(64, 24)}
    if form == "separate":
        named |= {"gate_weight": one(40, 48), "gate_bias": one(40)}
    results = []
    for fp8 in ("row", None):
        y = opforge.mlp(**named, activation=activation, fp8=fp8)
        grad = torch.ones_like(y)
        results.append([y, *torch.autograd.grad(y, list(named.values()), grad)])
    for got, right in zip(*results, strict=True):
        assert (got - right).norm() < (0.25 if activation == "relu" else 0.12) * right.norm()
    y, right = results[0][0], results[1][0]
    assert not torch.equal(y, right)


def test_modules():
    torch.manual_seed(0)
    x = torch.randn(16, 32, dtype=torch.bfloat16)
    made = (
        (opforge.nn.Linear, (32, 24), {"activation": "relu"}),
        (opforge.nn.MLP, (32, 48), {}),
        (opforge.nn.GatedMLP, (32, 48), {}),
        (opforge.nn.GatedMLP, (32, 48), {"packed": True}),
    )
    for module, sizes, options in made:
        plain = module(*sizes, dtype=torch.bfloat16, **options)
        cast = module(*sizes, dtype=torch.bfloat16, fp8="row", **options)
        cast.load_state_dict(plain.state_dict())
        assert "fp8='row'" in repr(cast)
        assert "fp8" not in repr(plain)
        y, right = cast(x), plain(x)
        assert not torch.equal(y, right)
        assert (y - right).norm() < 0.1 * right.norm()
        y.sum().backward()
        assert all(p.grad is not None for p in cast.parameters())


def test_what_is_refused():
    x, weight = torch.randn(4, 32), torch.randn(8, 32)
    run = opforge.fp8_linear
    with pytest.raises(
        TypeError, match=r"x is torch\.float8_e4m3fn without scales.*scaled_linear\("
    ):
        run(x.to(E4M3), weight)
    with pytest.raises(TypeError, match=r"weight is torch\.float8_e5m2 without scales"):
        run(x, weight.to(E5M2))
    with pytest.raises(TypeError, match=r"x has dtype torch\.float8_e4m3fn.*scaled_linear"):
        opforge.linear(x.to(E4M3), weight.to(E4M3))
    with pytest.raises(TypeError, match=r"x has dtype torch\.float64; supported: float32"):
        run(x.double(), weight.double())
    with pytest.raises(ValueError, match="scaling must be 'row' or 'tensor', got 'block'"):
        run(x, weight, scaling="block")
    with pytest.raises(ValueError, match=r"x and of weight must agree.*pass weight\.t\(\)"):
        run(x, weight.t())
    with pytest.raises(TypeError, match=r"x is torch\.float32 but weight is torch\.bfloat16"):
        run(x, weight.bfloat16())
    with pytest.raises(ValueError, match=r"bias must have shape \(8,\)"):
        run(x, weight, torch.ones(4))
    with pytest.raises(ValueError, match=r"activation must be one of None.*got 'swish'"):
        run(x, weight, activation="swish")
    down = torch.randn(32, 8)
    with pytest.raises(ValueError, match=r"opforge\.mlp: scaling must be .*got 'block'"):
        opforge.mlp(x, weight, down, fp8="block")
    with pytest.raises(ValueError, match=r"opforge\.mlp: tf32 and fp8 exclude each other"):
        opforge.mlp(x, weight, down, fp8="row", tf32=True)
    with pytest.raises(ValueError, match=r"opforge\.mlp: up_weight makes 8 values"):
        opforge.mlp(x, weight, weight, fp8="row")
    for module in (opforge.nn.Linear, opforge.nn.MLP, opforge.nn.GatedMLP):
        with pytest.raises(ValueError, match="fp8 must be None, 'row' or 'tensor', got True"):
            module(32, 8, fp8=True)
        with pytest.raises(ValueError, match="tf32 and fp8 exclude each other"):
            module(32, 8, fp8="row", tf32=True)


@each_device
@pytest.mark.parametrize(("rows", "features", "outputs"), [(0, 8, 4), (3, 0, 4), (3, 8, 0)])
def test_empty_dims(rows, features, outputs, device):
    x = torch.randn(rows, features, device=device, requires_grad=True)
    weight = torch.randn(outputs, features, device=device, requires_grad=True)
    y = opforge.fp8_linear(x, weight, torch.ones(outputs, device=device))
    assert y.shape == (rows, outputs)
    assert (y == 1).all() | (features > 0)
    grads = torch.autograd.grad(y.sum(), [x, weight])
    assert [g.shape for g in grads] == [x.shape, weight.shape]
    assert not any(g.any() for g in grads)
