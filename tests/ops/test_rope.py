# SPDX-License-Identifier: Apache-2.0
"""rope: the angles, the layouts it reads in place, positions out of range, the module."""

from __future__ import annotations

import math

import pytest
import torch
from op_cases import each_device, each_dtype, record

import opforge
from opforge import sim


def by_complex_numbers(x, angles, interleaved):
    """The turn as a product with exp(i angle), in float64; angles is (seq, rotary dim / 2)."""
    half = angles.shape[-1]
    turned = x[..., : 2 * half].double()
    pairs = turned.unflatten(-1, (half, 2) if interleaved else (2, half))
    real, imaginary = pairs.unbind(-1 if interleaved else -2)
    z = torch.complex(real, imaginary) * torch.polar(torch.ones_like(angles), angles)[:, None]
    parts = torch.stack([z.real, z.imag], -1 if interleaved else -2).flatten(-2)
    return torch.cat([parts, x[..., 2 * half :].double()], -1)


@each_device
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("dim", "rotary"), [(64, 64), (20, 12), (9, 6)])
def test_it_is_a_turn_in_the_complex_plane(interleaved, dim, rotary, device):
    module = opforge.nn.RotaryEmbedding(rotary, 16, interleaved=interleaved, device=device)
    q, k = (torch.randn(2, 11, heads, dim, device=device) for heads in (4, 2))
    frequencies = 10000.0 ** (-torch.arange(0, rotary, 2, dtype=torch.float64) / rotary)
    angles = torch.outer(torch.arange(11, dtype=torch.float64), frequencies).to(device)
    for got, x in zip(module(q, k), (q, k), strict=True):
        right = by_complex_numbers(x, angles, interleaved)
        torch.testing.assert_close(got.double(), right, atol=1e-6, rtol=1e-6)


@each_device
@each_dtype
def test_the_backward_turns_back(dtype, device):
    module = opforge.nn.RotaryEmbedding(32, 9, device=device)
    q = torch.randn(9, 3, 40, dtype=dtype, device=device, requires_grad=True)
    k = torch.randn(9, 1, 40, dtype=dtype, device=device, requires_grad=True)
    q_out, k_out = module(q, k)
    torch.autograd.backward([q_out, k_out], [q_out.detach(), k_out.detach()])
    # cos² + sin² is 1 but for the rounding of the tables, which are float32.
    tolerance = 8 * max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)
    torch.testing.assert_close(q.grad, q.detach(), atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(k.grad, k.detach(), atol=tolerance, rtol=tolerance)
    assert module.cos.grad is None


@each_device
def test_packed_projections_are_read_in_place(device):
    """q and k as slices of one qkv; nothing of the size of q but the results is allocated."""
    heads, keys, dim = 8, 2, 64
    qkv = torch.randn(2, 128, (heads + 2 * keys) * dim, device=device)
    q = qkv[..., : heads * dim].unflatten(-1, (heads, dim))
    k = qkv[..., heads * dim : (heads + keys) * dim].unflatten(-1, (keys, dim))
    module = opforge.nn.RotaryEmbedding(dim, 128, device=device)
    right = module(q.contiguous(), k.contiguous())
    with torch.profiler.profile() as profile:
        got = module(q, k)
    copies = {"aten::clone", "aten::contiguous", "aten::copy_"}
    assert not copies & {e.name for e in profile.events()}
    assert all(torch.equal(a, b) for a, b in zip(got, right, strict=True))


@pytest.mark.sim
@each_dtype
def test_the_cpu_gives_the_bits_of_the_gpu(dtype):
    for interleaved in (False, True):
        for dim, rotary in ((64, 48), (10, 6)):
            module = opforge.nn.RotaryEmbedding(rotary, 50, interleaved=interleaved)
            q, k = (torch.randn(2, 50, n, dim).to(dtype) for n in (3, 1))
            ours = module(q, k)
            with sim.active():
                theirs = module(q, k)
            assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@each_device
def test_positions_move_tokens(device):
    module = opforge.nn.RotaryEmbedding(16, 64, device=device)
    q = torch.randn(3, 64, 2, 16, device=device)
    whole, _ = module(q)
    order = torch.randperm(64).to(device)
    moved, _ = module(q[:, order], positions=order)
    assert torch.equal(moved, whole[:, order])
    one, _ = module(q[:, 5:6], positions=torch.tensor([5], device=device))
    assert torch.equal(one, whole[:, 5:6])


@each_device
@pytest.mark.parametrize("position", [-1, 8, 2**40, -(2**40)])
def test_the_op_gives_nan_for_a_position_out_of_range(position, device):
    module = opforge.nn.RotaryEmbedding(8, 8, device=device)
    q, k = torch.randn(6, 2, 12, device=device), torch.randn(6, 1, 12, device=device)
    positions = torch.tensor([0, 1, position, 3, 4, 5], device=device)
    for out, x in zip(
        record("rope")(q, k, module.cos, module.sin, positions, False), (q, k), strict=True
    ):
        assert out[2, :, :8].isnan().all()
        assert torch.equal(out[..., 8:], x[..., 8:])
        assert not out[[0, 1, 3, 4, 5]].isnan().any()


def test_on_the_cpu_a_position_out_of_range_is_an_error():
    module = opforge.nn.RotaryEmbedding(8, 8)
    q = torch.randn(2, 1, 8)
    for positions in ([0, 8], [-1, 0]):
        with pytest.raises(IndexError, match=r"positions go from -?\d to \d, but .* 8 positions"):
            module(q, positions=torch.tensor(positions))
    with pytest.raises(ValueError, match="cos has 8 positions"):
        module(torch.randn(9, 1, 8))


def test_without_keys_there_are_none():
    module = opforge.nn.RotaryEmbedding(8, 8)
    q = torch.randn(4, 2, 8, requires_grad=True)
    q_out, k_out = module(q)
    assert k_out is None
    q_out.sum().backward()
    assert q.grad.shape == q.shape


def test_compiled_in_one_graph():
    module = opforge.nn.RotaryEmbedding(8, 8)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    q, k = torch.randn(4, 2, 8, requires_grad=True), torch.randn(4, 1, 8)
    positions = torch.tensor([3, 1, 2, 0])
    for got, right in zip(compiled(q, k, positions), module(q, k, positions), strict=True):
        assert torch.equal(got, right)


def test_late_positions_keep_their_angles():
    """Of angles of 1e6 radians, float32 would keep one digit after the point."""
    module = opforge.nn.RotaryEmbedding(2, 1_000_001)
    assert module.cos[-1, 0].item() == pytest.approx(math.cos(1e6), abs=1e-7)


@pytest.mark.parametrize("arguments", [(7,), (0,), (8, 0), (8, 8, 0.0), (8, 8, math.nan)])
def test_the_module_refuses_what_makes_no_angles(arguments):
    with pytest.raises(ValueError, match="must be"):
        opforge.nn.RotaryEmbedding(*arguments)


def test_the_module_has_no_state():
    module = opforge.nn.RotaryEmbedding(8, 16, interleaved=True)
    assert not module.state_dict()
    expected = "RotaryEmbedding(8, max_positions=16, base=10000, interleaved=True)"
    assert repr(module) == expected
