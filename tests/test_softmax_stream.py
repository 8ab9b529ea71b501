# SPDX-License-Identifier: Apache-2.0
"""softmax and log_softmax of many long rows, simulated on a GPU of few multiprocessors: so that
blocks take several tiles of them (softmax_stream.cuh)."""

from __future__ import annotations

import math

import pytest
import torch
from long_rows import CASES, SHORT, drawn, kernels, small_gpu

import opforge

pytestmark = pytest.mark.sim
each_softmax = pytest.mark.parametrize("name", ["softmax", "log_softmax"])
INF = math.inf


def result(name, x, multiprocessors, kernel, **options):
    """Of the op, which this kernel must have made."""
    with small_gpu(multiprocessors, traffic=True) as calls:
        y = getattr(opforge, name)(x, **options)
    assert kernels(calls) == {kernel}
    return y


def check(name, x, multiprocessors=4, kernel="softmax_stream", scale=1.0):
    """The result is right to a few roundings: of a long row it is small, and so would be errors."""
    y = result(name, x, multiprocessors, kernel, scale=scale)
    exact = getattr(torch, name)(x.double() * scale, -1).to(x.dtype)
    kind = torch.finfo(x.dtype)
    relative = kind.eps * (2 if x.dtype.itemsize == 2 else 32)
    least = max(kind.smallest_normal * kind.eps, torch.finfo(torch.float32).smallest_normal)
    absolute = least if name == "softmax" else relative
    torch.testing.assert_close(y, exact, rtol=relative, atol=absolute, equal_nan=True)


# Of the classes in the last one, a cluster begins with one that has no row for it.
@each_softmax
@pytest.mark.parametrize(
    ("shape", "dtype", "multiprocessors"), [*CASES, ((33, 16_389), SHORT, 14)], ids=str
)
def test_many_long_rows(name, shape, dtype, multiprocessors):
    check(name, drawn(*shape, dtype=dtype), multiprocessors, scale=0.5)


@each_softmax
@pytest.mark.parametrize("cols", [16_384, 16_389])
def test_nan_and_infinities_are_as_in_torch(name, cols):
    """Alone, all over a row and all over the part of a thread, a warp or a block; the rows beside
    them are not affected."""
    rows, most = 18, torch.finfo(torch.float32).max
    x = drawn(rows, cols, dtype=torch.float32)
    x[1, 5], x[2] = math.nan, math.nan
    x[3, -1], x[4] = INF, INF
    x[5, 9], x[6], x[7, :9000], x[8, 9000:], x[9, 1:] = -INF, -INF, -INF, -INF, -INF
    x[10], x[11], x[12, 7] = -most, most, most
    x[13, :8200], x[13, 8200:] = -most, most
    x[14, 100], x[14, 9000] = INF, -INF
    check(name, x)


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
    for x in (drawn(10, cols + 8)[:, 8:], drawn(3, 5, cols)[:, 2:]):
        check(name, x)
    check(name, drawn(9, cols + 3)[:, 3:], kernel="map_rows")  # begins elsewhere than the result


@each_softmax
def test_any_scale(name):
    x = drawn(9, 16_384, dtype=torch.float32)
    for scale in (1e-30, 0.125, 3.0, 1e4):
        check(name, x, scale=scale)
    for scale in (0.0, -2.0, math.nan):
        check(name, x, kernel="map_rows", scale=scale)


@each_softmax
def test_what_goes_elsewhere(name):
    """Few rows, short ones, too long ones, doubles, a mask and causal."""
    x = drawn(9, 16_384)
    for one, options in (
        (drawn(7, 16_384), {}),
        (drawn(9, 16_376), {}),
        (drawn(9, 65_544), {}),
        (x.double(), {}),
        (x, {"mask": torch.zeros(1)}),
        (x, {"causal": True}),
    ):
        result(name, one, 2, "map_rows", **options)
