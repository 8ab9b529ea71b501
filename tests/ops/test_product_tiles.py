# SPDX-License-Identifier: Apache-2.0
"""Every tile that a product can have, in the simulator with its detectors, where each block makes
several tiles one after the other: what a block leaves in shared memory must not meet the next one.
"""

from __future__ import annotations

import contextlib
import ctypes

import pytest
import torch

import opforge
from opforge import discover, sim
from opforge.build.targets import SIM_RACE
from opforge.sim import runtime
from opforge.tune import table
from opforge.tune.table import Choice, Product

M, N, K = 300, 520, 200
pytestmark = [pytest.mark.sim, pytest.mark.nightly]  # it compiles for a minute
SMALL = sim.Device(multiprocessors=4)


@contextlib.contextmanager
def tile(op, name, majors="ii", sizes=(M, N, K), device=SMALL):
    """The simulator, in which products of this kind have the tile."""
    record = discover.find(op)
    runtime.ensure(record, SIM_RACE.name)
    library = ctypes.CDLL(str(runtime.loaded_path(record, SIM_RACE.name)))
    library.opforge_set_choices(table.line(Product("bf16", majors, *sizes), Choice(name)).encode())
    try:
        with sim.active("race", device=device):
            yield
    finally:
        library.opforge_set_choices(b"")


def drawn(*shape):
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(torch.bfloat16)


def near(got, right):
    """But for the rounding of the result."""
    assert (got.double() - right).abs().max() <= 0.01 * right.abs().max()


LINEAR = {
    "ii": ["large", "pingpong", "split", "wide", "medium", "small", "half"],
    "io": ["large", "pingpong", "wide", "small"],
    "oi": ["pingpong"],
    "oo": ["large", "pingpong", "wide", "split"],
}


@pytest.mark.parametrize(
    ("majors", "name"), [(majors, name) for majors, names in LINEAR.items() for name in names]
)
def test_linear(majors, name):
    x, weight, bias, residual = drawn(M, K), drawn(N, K), drawn(N), drawn(M, N)
    right = torch.relu(x.double() @ weight.double().t() + bias.double())
    if majors[0] == "o":
        x = x.t().contiguous().t()
    if majors[1] == "o":
        weight = weight.t().contiguous().t()
    with tile("linear", f"{majors}_{name}", majors):
        near(opforge.linear(x, weight, bias, "relu"), right)
        near(opforge.linear(x, weight, bias, "relu", residual), right + residual.double())


# The result has 6 tiles of two blocks. Their 24 stages are those of 3, 4, 5, 7 and 30 clusters.
@pytest.mark.parametrize("multiprocessors", [6, 8, 10, 14, 60])
@pytest.mark.parametrize("majors", ["ii", "io", "oo"])
def test_parts_of_tiles(majors, multiprocessors):
    x, weight, bias, residual = drawn(M, K), drawn(N, K), drawn(N), drawn(M, N)
    right = torch.relu(x.double() @ weight.double().t() + bias.double()) + residual.double()
    if majors[0] == "o":
        x = x.t().contiguous().t()
    if majors[1] == "o":
        weight = weight.t().contiguous().t()
    device = sim.Device(multiprocessors=multiprocessors)
    with tile("linear", f"{majors}_stream", majors, device=device):
        first = opforge.linear(x, weight, bias, "relu", residual)
        near(first, right)
        assert torch.equal(first, opforge.linear(x, weight, bias, "relu", residual))


@pytest.mark.parametrize("name", ["large", "pingpong", "split"])
def test_gated_linear(name):
    x, gate, up = drawn(M, K), drawn(N // 2, K), drawn(N // 2, K)
    right = torch.relu(x.double() @ gate.double().t()) * (x.double() @ up.double().t())
    with tile("gated_linear", name, sizes=(M, N // 2, K)):
        near(opforge.gated_linear(x, gate, up, activation="relu"), right)


@pytest.mark.parametrize("name", ["large", "pingpong"])
def test_linear_dact(name):
    grad, weight, z = drawn(M, K), drawn(K, N), drawn(M, N)
    right = torch.where(z > 0, grad.double() @ weight.double(), 0.0)
    with tile("linear_dact", name, "io"):
        passed, _, sums = discover.find("linear_dact")(
            *(grad, weight, z, 1, False, False, False, True)
        )
    near(passed, right)
    near(sums, right.sum(0))


@pytest.mark.parametrize("name", ["wide", "medium", "split", "fast_large", "fast_pingpong"])
def test_scaled_linear(name):
    (x, x_scale), (weight, weight_scale) = map(opforge.quantize_fp8, (drawn(M, K), drawn(N, K)))
    right = (x.double() * x_scale.double()) @ (weight.double() * weight_scale.double()).t()
    fast = name.startswith("fast")
    with tile("scaled_linear", name):
        near(opforge.scaled_linear(x, weight, x_scale, weight_scale, fast_accum=fast), right)


@pytest.mark.parametrize("name", ["ii_large", "ii_pingpong", "ii_short"])
def test_grouped_linear(name):
    x, weights = drawn(M, K), drawn(3, N, K)
    ends = torch.tensor([70, 70, 290], dtype=torch.int32)
    right = torch.zeros(M, N, dtype=torch.float64)
    right[:70] = x[:70].double() @ weights[0].double().t()
    right[70:290] = x[70:290].double() @ weights[2].double().t()
    with tile("grouped_linear", name):
        near(opforge.grouped_linear(x, weights, ends), right)
