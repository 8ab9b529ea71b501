# SPDX-License-Identifier: Apache-2.0
"""Gated activations and bias_gelu beside the rows of `opforge check`: every 16-bit argument, large
arguments in every dtype, the packed form, and what is refused."""

from __future__ import annotations

import math

import pytest
import torch
from op_cases import each_device, each_dtype

import opforge
from opforge import sim
from opforge.truth.compare import ulp

# Public function, derivative parts: act(x) = x * share(x), act'(x) = share(x) + x * share'(x).
ACTS = {
    "silu": (
        opforge.swiglu,
        lambda x: torch.sigmoid(x),
        lambda x: torch.sigmoid(x) * torch.sigmoid(-x),
    ),
    "gelu": (
        opforge.geglu,
        lambda x: torch.special.erfc(-x / math.sqrt(2)) / 2,
        lambda x: torch.exp(-x * x / 2) / math.sqrt(2 * math.pi),
    ),
    "tanh": (
        lambda gate, up: opforge.geglu(gate, up, "tanh"),
        lambda x: torch.sigmoid(_twice_u(x)),
        lambda x: (
            torch.sigmoid(_twice_u(x))
            * torch.sigmoid(-_twice_u(x))
            * (math.sqrt(8 / math.pi) * (1 + 3 * 0.044715 * x * x))
        ),
    ),
}
each_act = pytest.mark.parametrize("act", list(ACTS))


def _twice_u(x: torch.Tensor) -> torch.Tensor:
    return math.sqrt(8 / math.pi) * (x + 0.044715 * x**3)


@each_device
@each_act
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["half", "bfloat16"])
def test_every_16_bit_argument(act, dtype, device):
    """Rounded as if computed exactly, or next to it where that is within 2e-5 of a tie.

    What is below the smallest float before it is multiplied may be 0.
    """
    run, share, slope = ACTS[act]
    bits = torch.arange(-(2**15), 2**15, device=device).to(torch.int16)
    gate = bits.view(dtype)
    gate = gate[gate.isfinite()].requires_grad_()
    up = torch.ones_like(gate)
    y = run(gate, up)
    (grad,) = torch.autograd.grad(y, gate, up)
    x = gate.detach().double()
    part, rest = share(x), (x * slope(x)).nan_to_num(0.0)
    for got, terms in ((y, [x * part]), (grad, [part, rest])):
        truth, size = sum(terms), sum(t.abs() for t in terms)
        allowed = 0.5 * ulp(truth, dtype) + 2e-5 * size + 512 * torch.finfo(torch.float32).tiny
        wrong = (got.detach().double() - truth).abs() > allowed
        wrong &= truth.abs() < torch.finfo(dtype).max
        assert not wrong.any(), gate[wrong][:5]
        assert not got.isnan().any()


@each_device
@each_dtype
@each_act
def test_large_arguments(act, dtype, device):
    """Neither NaN nor infinity comes of what is finite."""
    values = [90.0, 1000.0, 60000.0]
    if dtype in (torch.float32, torch.bfloat16):  # the float64 truth itself overflows
        values += [1e18, 1e30, torch.finfo(dtype).max]
    gate = torch.tensor([*values, *(-v for v in values)], dtype=dtype, device=device)
    gate.requires_grad_()
    y = ACTS[act][0](gate, torch.ones_like(gate))
    (grad,) = torch.autograd.grad(y, gate, torch.ones_like(y))
    n = len(values)
    assert torch.equal(y[:n], gate[:n])
    assert torch.equal(grad[:n], torch.ones_like(grad[:n]))
    assert y[n:].abs().max().item() < 1e-30
    assert grad[n:].abs().max().item() < 1e-30
    assert torch.signbit(y[n:]).all()


@each_device
@pytest.mark.parametrize("run", [opforge.swiglu, opforge.geglu, opforge.reglu])
def test_packed_is_separate_in_one_tensor(run, device):
    for shape in [(6, 64), (5, 34), (2, 3, 16), (4, 2)]:
        x = torch.randn(shape, device=device, requires_grad=True)
        gate, up = (t.detach().contiguous().requires_grad_() for t in x.chunk(2, -1))
        packed, separate = run(x), run(gate, up)
        assert torch.equal(packed, separate)
        grad = torch.randn_like(packed)
        (found,) = torch.autograd.grad(packed, x, grad)
        assert torch.equal(found, torch.cat(torch.autograd.grad(separate, (gate, up), grad), -1))


def packed_and_separate(run, x):
    """The same bits, forward and backward, of halves of rows and of tensors of their own."""
    halves = [t.detach().contiguous().requires_grad_() for t in x.chunk(2, -1)]
    packed, separate = run(x), run(*halves)
    assert torch.equal(packed, separate)
    grad = torch.randn_like(packed)
    (found,) = torch.autograd.grad(packed, x, grad)
    assert torch.equal(found, torch.cat(torch.autograd.grad(separate, halves, grad), -1))


@each_device
@each_dtype
@pytest.mark.parametrize("width", [17, 33, 65, 100, 1027])
def test_unaligned_halves(width, dtype, device):
    """Each row of each operand begins at an alignment of its own; 100 does so where it is cut."""
    x = torch.randn(9, 2 * width + 5, device=device).to(dtype)
    packed_and_separate(opforge.swiglu, x[:, : 2 * width].contiguous().requires_grad_())
    for cut in (x[:, 3:-2], x[::2, 1:-4], x[:1, 5:]):
        packed_and_separate(opforge.swiglu, cut.detach().requires_grad_())


@each_device
def test_unaligned_dense_operands(device):
    gate, up = (torch.randn(1003, device=device).bfloat16() for _ in range(2))
    assert torch.equal(opforge.geglu(gate[1:], up[1:].clone()), opforge.geglu(gate, up)[1:])


@pytest.mark.nightly
@pytest.mark.sim
@each_dtype
def test_unaligned_rows_are_made_by_vectors(dtype):
    """In whatever order threads run, and one of them to a vector."""
    x = torch.randn(7, 2 * 1027).to(dtype).requires_grad_()
    right = opforge.swiglu(x.detach().double()).to(dtype)
    for seed in (None, 5):
        with sim.active("race", seed=seed):
            y = opforge.swiglu(x)
            y.backward(torch.ones_like(y))
        torch.testing.assert_close(y, right, rtol=1.6e-2 if dtype.itemsize == 2 else 1e-5, atol=0)
    with sim.active("race", traffic=True) as calls:
        opforge.swiglu(x.detach())
    (launch,) = [one for call in calls for one in call.launches]
    assert "unaligned" in launch.kernel
    vectors = 7 * math.ceil(1027 * dtype.itemsize / 16 + 1)
    assert launch.blocks * launch.threads <= vectors + 256


def test_what_is_refused():
    x = torch.randn(4, 6)
    with pytest.raises(ValueError, match=r"one shape, got gate \(4, 6\) and up \(4, 5\)"):
        opforge.swiglu(x, torch.randn(4, 5))
    with pytest.raises(ValueError, match=r"must be even; gate has shape \(4, 5\)"):
        opforge.reglu(torch.randn(4, 5))
    with pytest.raises(TypeError, match=r"up\.to\(gate\.dtype\)"):
        opforge.geglu(x, x.double())
    for call in (lambda: opforge.geglu(x, x, "erf"), lambda: opforge.bias_gelu(x, x[0], "erf")):
        with pytest.raises(ValueError, match='approximate must be "none" or "tanh", got \'erf\''):
            call()
    with pytest.raises(ValueError, match=r"bias must have shape \(6,\)"):
        opforge.bias_gelu(x, torch.randn(4))


@each_device
@each_dtype
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_bias_gelu_is_geglu_of_the_sum(approximate, dtype, device):
    """The same activation: where the sum is exact, the same bits."""
    x = torch.randint(-8, 8, (40, 33), device=device).to(dtype).requires_grad_()
    bias = torch.randint(-8, 8, (33,), device=device).to(dtype).requires_grad_()
    y = opforge.bias_gelu(x, bias, approximate)
    total = (x + bias).detach().requires_grad_()
    other = opforge.geglu(total, torch.ones_like(total), approximate)
    assert torch.equal(y, other)
    grad = torch.randn_like(y)
    grad_x, grad_bias = torch.autograd.grad(y, (x, bias), grad)
    (passed,) = torch.autograd.grad(other, total, grad)
    assert torch.equal(grad_x, passed)
    assert torch.allclose(grad_bias.double(), passed.double().sum(0), rtol=0.02, atol=0.05)
