# SPDX-License-Identifier: Apache-2.0
"""scaled_linear beside the rows of `opforge check`: against torch in float64, any scales and
strides, how many kernels run, and what is refused."""

from __future__ import annotations

import pytest
import torch
from linear_layers import ACTIVATIONS, each_device, near

import opforge
from opforge import sim

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
each_scaling = pytest.mark.parametrize("scaling", ["row", "tensor"])


def drawn(device, rows=70, features=144, outputs=40, scaling="row", dtype=E4M3):
    """FP8 x and weight with their scales."""
    generator = torch.Generator().manual_seed(rows + features)
    x = torch.randn(rows, features, generator=generator).to(device)
    weight = (
        torch.randn(outputs, features, generator=generator).to(device) * max(features, 1) ** -0.5
    )
    q, scale = opforge.quantize_fp8(x, dtype, scaling)
    weight_q, weight_scale = opforge.quantize_fp8(weight, E4M3, scaling)
    return q, weight_q, scale, weight_scale


def exact(x, weight, x_scale, weight_scale):
    """The product in float64."""
    return (x.double() * x_scale.double()) @ (weight.double() * weight_scale.double()).t()


@each_device
@each_scaling
@pytest.mark.parametrize("fast_accum", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_it_is_the_product_of_the_numbers(dtype, fast_accum, scaling, device):
    tensors = drawn(device, scaling=scaling)
    y = opforge.scaled_linear(*tensors, out_dtype=dtype, fast_accum=fast_accum)
    assert y.dtype == dtype
    # On a GPU, fast sums have 14 bits.
    near(y, exact(*tensors), torch.float16 if dtype == torch.float32 else dtype)


@each_device
@each_scaling
def test_gradients_are_multiplied_as_e5m2(scaling, device):
    tensors = drawn(device, scaling=scaling, dtype=E5M2)
    near(opforge.scaled_linear(*tensors), exact(*tensors), torch.bfloat16)


@each_device
@pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=["e4m3", "e5m2"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_what_follows_the_product(activation, dtype, device):
    tensors = drawn(device, dtype=dtype)
    bias = torch.randn(40, device=device, dtype=torch.bfloat16)
    residual = torch.randn(70, 40, device=device, dtype=torch.bfloat16)
    y = opforge.scaled_linear(*tensors, bias, activation, residual)
    right = ACTIVATIONS[activation](exact(*tensors) + bias.double()) + residual.double()
    near(y, right, torch.bfloat16)


@each_device
def test_any_scale_will_do_and_any_strides(device):
    x, weight, x_scale, weight_scale = drawn(device, features=31)
    x_scale, weight_scale = x_scale * 3, weight_scale[:1].squeeze() / 2
    near(
        opforge.scaled_linear(x, weight, x_scale, weight_scale),
        exact(x, weight, x_scale, weight_scale),
        torch.bfloat16,
    )
    apart = torch.stack([x.view(torch.uint8)] * 2, -1)[..., 0].view(E4M3)
    assert apart.stride(1) == 2
    near(
        opforge.scaled_linear(
            apart.unflatten(0, (7, 10)), weight, torch.ones((), device=device), weight_scale
        ),
        exact(apart, weight, torch.ones((), device=device), weight_scale).unflatten(0, (7, 10)),
        torch.bfloat16,
    )


def test_gradients_of_what_is_added():
    x, weight, x_scale, weight_scale = drawn("cpu")
    bias = torch.randn(40, dtype=torch.bfloat16, requires_grad=True)
    scale = x_scale.clone().requires_grad_()
    y = opforge.scaled_linear(x, weight, scale, weight_scale, bias, out_dtype=torch.bfloat16)
    by_bias, by_scale = torch.autograd.grad(y.sum(), [bias, scale])
    assert torch.equal(by_bias, torch.full_like(bias, 70))
    expected = exact(x, weight, torch.ones(()), weight_scale).sum(1, keepdim=True)
    near(by_scale, expected, torch.bfloat16)


@pytest.mark.sim
@pytest.mark.nightly
def test_one_kernel_makes_it():
    tensors = drawn("cpu")
    bias = torch.randn(40, dtype=torch.bfloat16)
    with sim.active("race", traffic=True) as calls:
        opforge.scaled_linear(*tensors, bias, "gelu")
    (launch,) = calls[-1].launches
    assert "hopper_product" in launch.kernel
    assert launch.distinct_written == 70 * 40 * 2


def test_what_is_refused():
    x, weight, x_scale, weight_scale = drawn("cpu", 4, 32, 8)
    run = opforge.scaled_linear
    with pytest.raises(TypeError, match=r"x is torch\.float8_e4m3fn, .* pass x_scale, the second"):
        run(x, weight, weight_scale=weight_scale)
    with pytest.raises(TypeError, match=r"weight is torch\.float8_e4m3fn, .* pass weight_scale"):
        run(x, weight, x_scale)
    with pytest.raises(
        TypeError, match=r"x must be FP8, got torch\.float32; pass what .*fp8_linear"
    ):
        run(x.float(), weight, x_scale, weight_scale)
    with pytest.raises(
        TypeError, match=r"weight must be torch\.float8_e4m3fn, got .*only x may be"
    ):
        run(x, weight.float().to(E5M2), x_scale, weight_scale)
    with pytest.raises(
        ValueError,
        match=r"x_scale must have one value, or 4: one per row of x \(4, 32\); got shape \(3,\)",
    ):
        run(x, weight, torch.ones(3), weight_scale)
    with pytest.raises(ValueError, match=r"weight_scale must have one value, or 8: one per row"):
        run(x, weight, x_scale, torch.ones(4))
    with pytest.raises(ValueError, match=r"x and of weight must agree"):
        run(x, weight[:, :16], x_scale, weight_scale)
    with pytest.raises(
        TypeError, match=r"bias is torch\.float32 but the result is torch\.bfloat16"
    ):
        run(x, weight, x_scale, weight_scale, torch.ones(8))
    with pytest.raises(ValueError, match=r"residual must have shape \(4, 8\) .*got \(8,\)"):
        run(x, weight, x_scale, weight_scale, residual=torch.ones(8, dtype=torch.bfloat16))
    with pytest.raises(TypeError, match=r"out_dtype must be .*got torch\.float64"):
        run(x, weight, x_scale, weight_scale, out_dtype=torch.float64)
    with pytest.raises(ValueError, match=r"activation must be one of None, .*got 'swish'"):
        run(x, weight, x_scale, weight_scale, activation="swish")


@each_device
@pytest.mark.parametrize(("rows", "features", "outputs"), [(0, 8, 4), (3, 0, 4), (3, 8, 0)])
def test_empty_dims(rows, features, outputs, device):
    tensors = drawn(device, rows, features, outputs)
    y = opforge.scaled_linear(*tensors, torch.ones(outputs, device=device, dtype=torch.bfloat16))
    assert y.shape == (rows, outputs)
    assert (y == 1).all() | (features > 0)
