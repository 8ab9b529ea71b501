# SPDX-License-Identifier: Apache-2.0
"""quantize_fp8 beside the rows of `opforge check`: the numbers are the nearest ones, what is not
finite, how the results lie in memory, and what is refused."""

from __future__ import annotations

import math

import pytest
import torch
from op_cases import each_device

import opforge
from opforge.ops.families.float8 import quantise

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
MOST = {E4M3: 448.0, E5M2: 57344.0}
each_type = pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=["e4m3", "e5m2"])


def drawn(*shape, device="cpu"):
    generator = torch.Generator().manual_seed(sum(shape))
    sizes = torch.randn(shape, generator=generator) * 2  # as powers of e
    return (torch.randn(shape, generator=generator) * sizes.exp()).to(torch.bfloat16).to(device)


def nearest(values, dtype):
    """The nearest numbers, found among all of the type."""
    every = torch.arange(256, dtype=torch.uint8).view(dtype).double()
    every = every[torch.isfinite(every)].unique()
    return every[(values.double().unsqueeze(-1) - every).abs().argmin(-1)]


@each_device
@each_type
@pytest.mark.parametrize("scaling", ["row", "tensor"])
def test_numbers_are_the_nearest_ones(scaling, dtype, device):
    x = drawn(9, 40, device=device)
    q, scale = opforge.quantize_fp8(x, dtype, scaling)
    assert (q.dtype, scale.dtype) == (dtype, torch.float32)
    assert q.shape == x.shape
    largest = x.abs().amax(1, keepdim=True) if scaling == "row" else x.abs().amax()
    torch.testing.assert_close(scale, largest.float() / MOST[dtype])
    assert q.double().abs().max() == MOST[dtype]
    exact = x.cpu().double() / scale.cpu().double()
    off = (q.cpu().double() - exact).abs()
    # A value halfway between two numbers may go to either, because the scale is rounded.
    assert bool((off <= (nearest(exact, dtype) - exact).abs() + exact.abs() * 2**-22).all())


@each_device
@pytest.mark.parametrize("scaling", ["row", "tensor"])
def test_the_transpose_has_scales_of_its_own(scaling, device):
    x = drawn(37, 24, device=device)
    q, scale, q_t, scale_t = opforge.quantize_fp8(x, E4M3, scaling, transposed=True)
    for got, expected in zip(
        (q, scale, q_t, scale_t),
        (*opforge.quantize_fp8(x, E4M3, scaling), *opforge.quantize_fp8(x.t(), E4M3, scaling)),
        strict=True,
    ):
        assert got.shape == expected.shape
        assert torch.equal(got.double(), expected.double())


@each_device
def test_rows_begin_at_multiples_of_16_bytes(device):
    x = drawn(2, 5, 31, device=device)
    q, scale, q_t, scale_t = opforge.quantize_fp8(x, transposed=True)
    assert [t.shape for t in (q, scale)] == [(2, 5, 31), (2, 5, 1)]
    assert [t.shape for t in (q_t, scale_t)] == [(31, 10), (31, 1)]
    assert [t.stride() for t in (q, q_t)] == [(160, 32, 1), (16, 1)]


@each_device
def test_what_is_not_finite_stays_and_counts_for_no_scale(device):
    x = torch.tensor([[1.0, math.nan, -2.0], [math.inf, -math.inf, 4.0], [0.0, 0.0, -0.0]])
    x = x.to(device)
    q, scale = opforge.quantize_fp8(x, E4M3)
    assert torch.equal(scale.cpu(), torch.tensor([[2.0 / 448], [4.0 / 448], [1.0]]))
    assert q.float().isnan().tolist() == [[False, True, False], [True, True, False], [False] * 3]
    q, _ = opforge.quantize_fp8(x, E5M2)
    assert q.float()[1].tolist() == [math.inf, -math.inf, 57344.0]
    assert not q.float()[2].any()


@each_device
@each_type
@pytest.mark.parametrize("scaling", ["row", "tensor"])
@pytest.mark.parametrize("shape", [(130, 72), (257, 31), (9, 1032), (2, 8200)])
def test_bits_with_special_values_are_those_of_torch(shape, scaling, dtype, device):
    x = drawn(*shape)
    x.view(-1)[::37], x.view(-1)[5::41] = math.nan, math.inf
    x.view(-1)[7::43], x.view(-1)[9::29] = -math.inf, -0.0
    per_row = scaling == "row"
    expected = *quantise(x, dtype, per_row), *quantise(x.t(), dtype, per_row)
    q, scale, q_t, scale_t = opforge.quantize_fp8(x.to(device), dtype, scaling, transposed=True)
    alone, _ = opforge.quantize_fp8(x.to(device), dtype, scaling)
    found = q.view(torch.uint8), scale.flatten(), q_t.view(torch.uint8), scale_t.flatten()
    for got, right in zip(found, expected, strict=True):
        assert torch.equal(got.cpu(), right)
    assert torch.equal(alone.view(torch.uint8).cpu(), expected[0])


def test_what_is_refused():
    x = torch.randn(4, 6)
    with pytest.raises(
        TypeError, match=r"dtype must be torch\.float8_e4m3fn or .*got torch\.uint8"
    ):
        opforge.quantize_fp8(x, torch.uint8)
    with pytest.raises(ValueError, match="scaling must be 'row' or 'tensor', got 'block'"):
        opforge.quantize_fp8(x, scaling="block")
    with pytest.raises(ValueError, match="x must have at least one dimension, got a scalar"):
        opforge.quantize_fp8(torch.tensor(1.0))
