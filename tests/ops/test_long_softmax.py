# SPDX-License-Identifier: Apache-2.0
"""softmax and log_softmax of long rows, which a thread holds several vectors of."""

from __future__ import annotations

import math

import pytest
import torch
from long_rows import SHORT, drawn

import opforge
from opforge import sim

pytestmark = pytest.mark.sim
each_softmax = pytest.mark.parametrize("name", ["softmax", "log_softmax"])
INF = math.inf


@pytest.fixture(
    autouse=True, params=["plain", pytest.param("race", marks=pytest.mark.nightly)], ids=str
)
def simulated(request):
    with sim.active(request.param):
        yield


def check(name, x, scale=1.0):
    """The result is right to a few roundings: of a long row it is small, and so would be errors."""
    y = getattr(opforge, name)(x, scale=scale)
    exact = getattr(torch, name)(x.double() * scale, -1).to(x.dtype)
    kind = torch.finfo(x.dtype)
    relative = kind.eps * (2 if x.dtype.itemsize == 2 else 32)
    least = max(kind.smallest_normal * kind.eps, torch.finfo(torch.float32).smallest_normal)
    absolute = least if name == "softmax" else relative
    torch.testing.assert_close(y, exact, rtol=relative, atol=absolute, equal_nan=True)


# Vectors that only some threads have; many rows, of which a thread holds more, and few; clusters.
@each_softmax
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((66, 12_296), SHORT),
        ((65, 12_299), SHORT),
        ((64, 9_001), torch.float32),
        ((5, 20_000), torch.float16),
        ((66, 20_000), torch.float16),
        ((3, 40_001), SHORT),
        ((2, 131_072), SHORT),
    ],
    ids=str,
)
def test_long_rows(name, shape, dtype):
    check(name, drawn(*shape, dtype=dtype), scale=0.5)


@pytest.mark.nightly
@each_softmax
@pytest.mark.parametrize("scale", [1.0, 0.125])
@pytest.mark.parametrize("dtype", [torch.float32, SHORT])
@pytest.mark.parametrize("shape", [(18, 16_384), (66, 16_389)], ids=str)
def test_nan_and_infinities_are_as_in_torch(name, shape, dtype, scale):
    """Alone, all over a row and all over the part of a thread, a warp or a block; the rows beside
    them are not affected."""
    x, most = drawn(*shape, dtype=dtype), torch.finfo(dtype).max
    x[1, 5], x[2] = math.nan, math.nan
    x[3, -1], x[4] = INF, INF
    x[5, 9], x[6], x[7, :9000], x[8, 9000:], x[9, 1:] = -INF, -INF, -INF, -INF, -INF
    x[10], x[11], x[12, 7] = -most, most, most
    x[13, :8200], x[13, 8200:] = -most, most
    x[14, 100], x[14, 9000] = INF, -INF
    check(name, x, scale)


@each_softmax
def test_the_largest_element_may_be_anywhere(name):
    """What the other threads, warps and blocks have is then next to nothing."""
    x = drawn(9, 16_400, dtype=torch.float32)
    for row, largest in enumerate([0, 7, 31 * 4, 5000, 8199, 8200, 16_399]):
        x[row, largest] += 30
    x[7, :8200] += 1000
    x[8, 8200:] += 1000
    check(name, x)


@each_softmax
def test_strides(name):
    cols = 16_400
    for x in (drawn(10, cols + 8)[:, 8:], drawn(3, 5, cols)[:, 2:], drawn(9, cols + 3)[:, 3:]):
        check(name, x)


@pytest.mark.nightly
@each_softmax
@pytest.mark.parametrize("scale", [1e-30, 0.125, 3.0, 1e4, 0.0, -2.0, math.nan])
def test_any_scale(name, scale):
    check(name, drawn(9, 16_384, dtype=torch.float32), scale=scale)
