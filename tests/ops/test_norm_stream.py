# SPDX-License-Identifier: Apache-2.0
"""layer_norm and rms_norm of many long rows, simulated on a GPU of few multiprocessors: so that
blocks take several tiles of them (families/norm/stream.cuh); and gradients of rows longer still."""

from __future__ import annotations

import pytest
import torch
from long_rows import CASES, SHORT, drawn, kernels, small_gpu
from op_cases import record
from torch.nn import functional

import opforge
from opforge import sim
from opforge.op import Make
from opforge.ops.families import norms
from opforge.truth import cases

# Traffic is told by the build that looks for races, and that of the norms takes a minute.
pytestmark = [pytest.mark.sim, pytest.mark.nightly]
each_norm = pytest.mark.parametrize("name", ["layer_norm", "rms_norm"])


def arguments(name, shape, dtype=SHORT, offset=0.0, before=0):
    """Of the op, with parameters and what stands before the norm."""
    make = Make(dtype)
    x, weight, bias = make(*shape), make(shape[-1]), make(shape[-1])
    if name == "layer_norm":
        return x, weight, bias, None, None, 1e-5, before, 0, 0.0, True
    return x, weight, None, None, 1e-5, offset, before, 0, 0.0, True


def kernel_of(name, cols, dtype=SHORT):
    """What takes many rows of this length: those of rms_norm stream only if they are ragged."""
    aligned = cols * dtype.itemsize % 16 == 0
    return "map_rows_kernel" if name == "rms_norm" and aligned else "norm_stream"


@each_norm
@pytest.mark.parametrize(
    ("shape", "dtype", "multiprocessors"), [*CASES, ((43, 16_389), SHORT, 9)], ids=str
)
def test_many_long_rows(name, shape, dtype, multiprocessors):
    case = arguments(name, shape, dtype, offset=0.5)
    cases.check_forward(record(name), case, lambda: small_gpu(multiprocessors))
    with small_gpu(multiprocessors, traffic=True) as calls:
        record(name)(*case)
    assert kernels(calls) == {kernel_of(name, shape[-1], dtype)}


@pytest.mark.parametrize("shape", [(21, 16_392), (9, 16_389)], ids=str)
def test_a_relu_before_layer_norm(shape):
    case = arguments("layer_norm", shape, before=int(norms.Stage.RELU))
    case[0][3, 0] = float("nan")  # the element around which a row is added up
    cases.check_forward(record("layer_norm"), case, lambda: small_gpu(4))
    with small_gpu(4, traffic=True) as calls:
        record("layer_norm")(*case)
    assert kernels(calls) == {"norm_stream"}


@each_norm
def test_parameters_and_strides(name):
    def exact(x, *params):
        x, *params = (p if p is None else p.double() for p in (x, *params))
        norm = functional.layer_norm if name == "layer_norm" else functional.rms_norm
        return norm(x, x.shape[-1:], *params, eps=1e-5).to(SHORT)

    cols = 16_400
    wide, shifted = drawn(cols, dtype=torch.float32), drawn(cols + 3)[3:]
    for x in (drawn(9, cols), drawn(10, cols + 8)[:, 8:], drawn(3, 5, cols)[:, 2:]):
        for params in ((shifted, wide), (None, shifted), (None, None)):
            given = params if name == "layer_norm" else params[:1]
            with small_gpu(4, traffic=True) as calls:
                y = getattr(opforge, name)(x, *given, eps=1e-5)
            assert kernels(calls) == {kernel_of(name, cols)}
            torch.testing.assert_close(y, exact(x, *given))


@pytest.mark.parametrize("cols", [16_387, 18_000])
def test_a_row_of_one_value_has_no_deviation(cols):
    shape = 9, cols
    weight, bias = drawn(shape[-1]), drawn(shape[-1])
    x = torch.linspace(-1000, 3, shape[0]).to(SHORT)[:, None].repeat(1, shape[1])
    with small_gpu(4, traffic=True) as calls:
        y = opforge.layer_norm(x, weight, bias)
    assert kernels(calls) == {"norm_stream"}
    assert torch.equal(y, bias.expand(shape))


def test_the_variance_beside_an_outlier_that_comes_first():
    """It takes the cluster a turn more, of which the other row of a tile must not notice."""
    case = arguments("layer_norm", (27, 16_392), torch.float16)
    record("layer_norm")
    with small_gpu(4):
        alone = torch.ops.opforge.layer_norm(*case)  # with what it saves
    case[0][1::4, 0] = 6e4
    with small_gpu(4, traffic=True) as calls:
        found = torch.ops.opforge.layer_norm(*case)
    assert kernels(calls) == {"norm_stream"}
    deviation = (case[0].double().var(-1, correction=0) + 1e-5).sqrt()
    torch.testing.assert_close(found[3], (1 / deviation).float(), rtol=1e-5, atol=0)
    assert all(torch.equal(found[i][::2], alone[i][::2]) for i in (0, 2, 3))


def test_squares_around_an_outlier_that_overflow():
    x = drawn(17, 16_392)
    x[1::3, 0] = 1e18
    with small_gpu(4, traffic=True) as calls:
        y = opforge.layer_norm(x)
    assert kernels(calls) == {"norm_stream"}
    torch.testing.assert_close(y, functional.layer_norm(x.double(), x.shape[-1:]).to(SHORT))


def test_the_mean_of_a_cluster_is_around_one_element():
    """The two halves of a row begin with other values."""
    x = drawn(9, 16_384, dtype=torch.float32)
    x[:, 8192:] += 1000
    with small_gpu(2, traffic=True) as calls:
        y = opforge.layer_norm(x)
    assert kernels(calls) == {"norm_stream"}
    exact = functional.layer_norm(x.double(), x.shape[-1:]).float()
    torch.testing.assert_close(y, exact, atol=2e-6, rtol=2e-6)


@each_norm
def test_few_or_short_rows_and_those_with_a_relu_go_elsewhere(name):
    for shape, relu in (((7, 16_392), None), ((9, 16_384), None), ((9, 16_392), "after")):
        with small_gpu(2, traffic=True) as calls:
            getattr(opforge, name)(drawn(*shape), relu=relu)
        assert kernels(calls) == {"map_rows_kernel"}


@each_norm
@pytest.mark.parametrize("offset", [0.0, 0.5])
def test_many_rows_that_a_block_holds(name, offset):
    case = arguments(name, (66, 12_296), offset=offset)
    cases.check_forward(record(name), case, lambda: small_gpu(4))
    with small_gpu(4, traffic=True) as calls:
        record(name)(*case)
    assert kernels(calls) == {"map_rows_kernel"}


@pytest.mark.parametrize("shape", [(1, 131_072), (3, 70_001)], ids=str)
@each_norm
def test_gradients_of_rows_too_long_for_a_cluster(name, shape):
    leaves = cases.as_leaves(arguments(name, shape))
    cases.check_backward(record(name), leaves, around=lambda: sim.active("race"))
    with sim.active("race", traffic=True) as calls:
        y, *_ = record(name)(*leaves)
        y.sum().backward()
    assert kernels(calls) >= {"norm_backward_dots", "norm_backward_piece"}
    summed = {"norm_backward_column", "finish_sums"} & kernels(calls)
    assert len(summed) == (2 if shape[0] > 1 else 0)


@each_norm
def test_gradients_of_one_long_row_with_parameters_of_another_dtype(name):
    x, weight, bias, *rest = arguments(name, (1, 70_001))
    bias = None if bias is None else bias.float()
    leaves = cases.as_leaves((x, weight.float(), bias, *rest))
    cases.check_backward(record(name), leaves, around=lambda: sim.active("race"))
    with sim.active("race", traffic=True) as calls:
        y, *_ = record(name)(*leaves)
        y.sum().backward()
    assert kernels(calls) >= {"norm_backward_column", "finish_sums"}


def test_gradients_of_a_row_of_more_pieces_than_a_block_has_threads():
    leaves = cases.as_leaves(arguments("rms_norm", (1, 530_001)))
    cases.check_backward(record("rms_norm"), leaves, around=sim.active)
