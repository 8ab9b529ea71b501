# SPDX-License-Identifier: Apache-2.0
"""gated_linear beside the rows of `opforge check`: against torch in float64, packed weights, what
is kept, how many kernels run, and what is refused."""

from __future__ import annotations

import pytest
import torch
from linear_layers import ACTIVATIONS, each_device, near
from op_cases import each_dtype
from torch.nn import functional

import opforge
from opforge import sim


def drawn(device, rows, features, outputs, dtype=torch.float64, biases=True):
    """x, two weights and two biases, as leaves."""
    generator = torch.Generator().manual_seed(rows + features)

    def one(*shape, scale=1.0):
        values = torch.randn(shape, generator=generator, dtype=torch.float64) * scale
        return values.to(device, dtype).requires_grad_()

    weights = [one(outputs, features, scale=features**-0.5) for _ in range(2)]
    return [one(rows, features), *weights, *([one(outputs), one(outputs)] if biases else [])]


def truth(tensors, activation):
    """The formula in float64, and its leaves."""
    x, gate, up, *biases = [t.detach().double().requires_grad_() for t in tensors]
    gate_bias, up_bias = biases or (None, None)
    z = functional.linear(x, gate, gate_bias)
    y = ACTIVATIONS[activation](z) * functional.linear(x, up, up_bias)
    return y, [x, gate, up, *biases]


@each_device
@each_dtype
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_it_is_that_of_torch(activation, dtype, device):
    tensors = drawn(device, 70, 24, 40, dtype)
    y = opforge.gated_linear(*tensors, activation=activation)
    right, leaves = truth(tensors, activation)
    near(y, right, dtype)
    grad = torch.randn_like(y)
    found = torch.autograd.grad(y, tensors, grad)
    for got, expected in zip(found, torch.autograd.grad(right, leaves, grad.double()), strict=True):
        near(got, expected, dtype)


@each_device
def test_tf32_is_that_of_torch_but_for_its_rounding(device):
    tensors = drawn(device, 70, 24, 40, torch.float32)
    y = opforge.gated_linear(*tensors, tf32=True)
    right, leaves = truth(tensors, "silu")
    near(y, right, torch.float16)
    grad = torch.randn_like(y)
    found = torch.autograd.grad(y, tensors, grad)
    for got, expected in zip(found, torch.autograd.grad(right, leaves, grad.double()), strict=True):
        near(got, expected, torch.float16)


@each_device
@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("outputs", [40, 27])
def test_packed_is_separate_in_one_weight(outputs, biases, device):
    x, gate, up, *both = drawn(device, 33, 24, outputs, torch.bfloat16, biases)
    packed = torch.cat([gate, up]).detach().requires_grad_()
    bias = torch.cat(both).detach().requires_grad_() if biases else None
    y = opforge.gated_linear(x, packed, None, bias)
    separate = opforge.gated_linear(x, gate, up, *both)
    near(y, separate.double(), torch.bfloat16)
    grad = torch.randn_like(y)
    wanted = [packed, bias] if biases else [packed]
    found = torch.autograd.grad(y, wanted, grad)
    parts = torch.autograd.grad(separate, [gate, up, *both], grad)
    for got, (one, other) in zip(found, (parts[:2], parts[2:]), strict=False):
        assert got.is_contiguous()
        near(got, torch.cat([one, other]).double(), torch.bfloat16)


@pytest.mark.parametrize("packed", [False, True])
def test_gradcheck(packed):
    x, gate, up, gate_bias, up_bias = drawn("cpu", 5, 4, 3)
    if packed:
        gate = torch.cat([gate, up]).detach().requires_grad_()
        gate_bias = torch.cat([gate_bias, up_bias]).detach().requires_grad_()
        up = up_bias = None
    tensors = [t for t in (x, gate, up, gate_bias, up_bias) if t is not None]

    def run(*tensors):
        x, gate, *rest = tensors
        return (
            opforge.gated_linear(x, gate, None, *rest) if packed else opforge.gated_linear(*tensors)
        )

    assert torch.autograd.gradcheck(run, tensors)
    assert torch.autograd.gradgradcheck(run, tensors)


def test_only_what_requires_a_gradient_gets_one():
    tensors = drawn("cpu", 6, 4, 3)
    full = torch.autograd.grad(opforge.gated_linear(*tensors).sum(), tensors)
    for i, kept in enumerate(tensors):
        alone = [t if t is kept else t.detach() for t in tensors]
        (found,) = torch.autograd.grad(opforge.gated_linear(*alone).sum(), kept)
        torch.testing.assert_close(found, full[i])


def test_products_are_kept_only_for_a_gradient():
    x, gate, up, *_ = drawn("cpu", 6, 4, 3)
    saved = []

    def pack(tensor):
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        opforge.gated_linear(x, gate, up)
    known = {t.data_ptr() for t in (x, gate, up)}
    assert [tuple(t.shape) for t in saved if t.data_ptr() not in known] == [(6, 6)]
    with torch.no_grad():
        _, z = torch.ops.opforge.gated_linear(x, gate, up, None, None, 4, False, False)
    assert z.numel() == 0


def test_compiled_in_one_graph():
    tensors = drawn("cpu", 6, 8, 5, torch.float32)
    compiled = torch.compile(opforge.gated_linear, backend="aot_eager", fullgraph=True)
    got, right = compiled(*tensors), opforge.gated_linear(*tensors)
    torch.testing.assert_close(got, right)
    pairs = (torch.autograd.grad(y.square().sum(), tensors) for y in (got, right))
    for a, b in zip(*pairs, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.nightly
@pytest.mark.sim
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bfloat16", "tf32"])
def test_one_kernel_makes_the_forward(dtype):
    tensors = [t.detach() for t in drawn("cpu", 70, 64, 40, dtype)]
    with sim.active(traffic=True) as calls:
        opforge.gated_linear(*tensors, tf32=dtype == torch.float32)
    (call,) = calls
    (launch,) = call.launches
    assert "hopper_product" in launch.kernel
    read = sum(t.numel() * t.element_size() for t in tensors)
    assert launch.distinct_written == 70 * 40 * dtype.itemsize
    assert launch.distinct_read <= read + 1024


def test_what_is_refused():
    x, gate, up = torch.randn(4, 6), torch.randn(8, 6), torch.randn(8, 6)
    run = opforge.gated_linear
    with pytest.raises(ValueError, match=r"x and of up_weight must agree.*pass up_weight\.t\(\)"):
        run(x, gate, up.t())
    with pytest.raises(ValueError, match=r"one shape, got gate_weight \(8, 6\) and up_weight \(7"):
        run(x, gate, up[:7])
    with pytest.raises(ValueError, match=r"even number of them; it has shape \(7, 6\)"):
        run(x, gate[:7])
    with pytest.raises(ValueError, match=r"pass torch\.cat\(\[gate_bias, up_bias\]\)"):
        run(x, gate, None, None, torch.randn(4))
    with pytest.raises(ValueError, match=r"gate_bias must have shape \(8,\).*got \(4,\)"):
        run(x, gate, up, torch.randn(4))
    with pytest.raises(ValueError, match=r"activation must be one of None, 'relu'.*got 'swish'"):
        run(x, gate, up, activation="swish")
    with pytest.raises(TypeError, match=r"up_weight is torch\.float64; convert one, as in up_w"):
        run(x, gate, up.double())
    with pytest.raises(TypeError, match="tf32=True is for float32"):
        run(x.double(), gate.double(), up.double(), tf32=True)


@each_device
@pytest.mark.parametrize(("rows", "features", "outputs"), [(0, 8, 4), (3, 0, 4), (3, 8, 0)])
def test_empty_dims(rows, features, outputs, device):
    x = torch.randn(rows, features, device=device, requires_grad=True)
    gate, up = (torch.randn(outputs, features, device=device, requires_grad=True) for _ in "12")
    y = opforge.gated_linear(x, gate, up, torch.ones(outputs, device=device))
    assert y.shape == (rows, outputs)
    grads = torch.autograd.grad(y.sum(), [x, gate, up])
    assert [g.shape for g in grads] == [x.shape, gate.shape, up.shape]
    assert not any(g.any() for g in grads)
