# SPDX-License-Identifier: Apache-2.0
"""Paths of cumsum that shapes of an ordinary test do not take, and its options against torch."""

from __future__ import annotations

import pytest
import torch
from op_cases import each_device, each_dtype, each_mode, record

import opforge
from opforge import sim
from opforge.op import Make
from opforge.truth import cases, compare

pytestmark = pytest.mark.sim

# On a GPU of so many multiprocessors: several trips of a block down a row, chunks of several trips.
LONG = [
    (2, (3, 20_001), -1),  # a block to a row
    (2, (3, 140_000), -1),  # that no cluster holds, either
    (2, (1, 140_003), -1),  # chunks
    (1, (900, 40), 0),  # columns, by vectors
    (1, (900, 41), 0),  # and by elements
    (8, (5000, 5), 0),  # chunks of columns
]


@each_dtype
@pytest.mark.parametrize(("multiprocessors", "shape", "dim"), LONG)
@pytest.mark.parametrize("reverse", [False, True])
@each_mode
def test_blocks_make_several_trips(multiprocessors, shape, dim, reverse, dtype, mode):
    case = (Make(dtype)(*shape), dim, reverse, reverse)
    device = sim.Device(multiprocessors=multiprocessors)
    cases.check_forward(record("cumsum"), case, lambda: sim.active(mode, device=device))


# Of a thousand multiprocessors few rows never are many.
FEW, MANY = 1000, 1
# Vectors of a row; what it takes on which GPU: blocks, threads; and if it is ragged.
SWITCHES = [
    (4, MANY, (1, 128), (1, 128)),  # a thread to a row
    (5, MANY, (1, 128), (1, 128)),  # two
    (128, MANY, (1, 128), (1, 128)),  # a warp
    (129, MANY, (3, 64), (3, 64)),  # a block
    (1024, FEW, (3, 256), (3, 256)),
    (2048, FEW, (3, 512), (3, 512)),
    (2049, MANY, (6, 288), (3, 192)),  # a cluster, or a block that makes three trips
    (2049, FEW, (6, 288), (6, 288)),
]


@pytest.mark.nightly
@each_dtype
@pytest.mark.parametrize(("vectors", "multiprocessors", "size", "ragged_size"), SWITCHES)
@pytest.mark.parametrize("reverse", [False, True])
def test_a_row_is_read_once_by_as_many_as_can_hold_it(
    vectors, multiprocessors, size, ragged_size, reverse, dtype
):
    """Also a row that ends, or begins, within a vector, or lies in x otherwise than in y."""
    op, make, width = record("cumsum"), Make(dtype), 16 // dtype.itemsize
    whole = vectors * width
    # Of three rows whose length is no multiple of it the vectors may be one more.
    ragged = (vectors - 1) * width + 1
    views = [make(3, whole), make(3, ragged), make(3, whole + 3)[:, 1:-2], make(3 * ragged + 1)[1:]]
    views[-1] = views[-1].view(3, ragged)
    for number, x in enumerate(views):
        case = (x, -1, number % 2 == 0, reverse)
        device = sim.Device(multiprocessors=multiprocessors)
        with sim.active("race", device=device, traffic=True) as calls:
            (y,) = cases.check_forward(op, case)
        (launch,) = [one for call in calls for one in call.launches]
        assert (launch.blocks, launch.threads) == (ragged_size if number else size)
        assert launch.bytes_written == y.numel() * y.itemsize
        if number < 2:  # else neighbours read the same vectors
            assert launch.bytes_read == x.numel() * x.itemsize


@each_device
@pytest.mark.parametrize("shape", [(), (1, 1), (1, 40), (40, 1)], ids=str)
def test_the_sum_of_one_number_has_no_negative_zero(device, shape):
    """As that of several, which begin at 0."""
    x = torch.full(shape, -0.0, device=device)
    for dim in range(-max(len(shape), 1), 0):
        assert not torch.signbit(opforge.cumsum(x, dim)).any()


@each_device
def test_options(device):
    x = torch.tensor([[1.0, 2.0, 4.0], [8.0, 16.0, 32.0]], device=device)
    assert opforge.cumsum(x).tolist() == [[1, 3, 7], [8, 24, 56]]
    assert opforge.cumsum(x, exclusive=True).tolist() == [[0, 1, 3], [0, 8, 24]]
    assert opforge.cumsum(x, reverse=True).tolist() == [[7, 6, 4], [56, 48, 32]]
    assert opforge.cumsum(x, 1, True, True).tolist() == [[6, 4, 0], [48, 32, 0]]
    assert opforge.cumsum(x, 0).tolist() == [[1, 2, 4], [9, 18, 36]]
    assert opforge.cumsum(x, 0, True).tolist() == [[0, 0, 0], [1, 2, 4]]
    assert opforge.cumsum(x, 0, True, True).tolist() == [[8, 16, 32], [0, 0, 0]]


@each_dtype
@pytest.mark.parametrize(("shape", "dim"), [((2, 300_000), 1), ((100_000, 3), 0), ((70, 999), 1)])
def test_the_number_of_threads_does_not_matter(shape, dim, dtype):
    x = Make(dtype)(*shape)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = opforge.cumsum(x, dim)
        torch.set_num_threads(3)
        compare.check_same_bits(alone, opforge.cumsum(x, dim), "with three threads")
    finally:
        torch.set_num_threads(threads)
