# SPDX-License-Identifier: Apache-2.0
"""Which calls go through the simulator, and in which order their threads run."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import python, write_op
from sim_kernels import FINE, Call, load_kernels, rows, works, write_kernels
from torch._subclasses.fake_tensor import FakeTensorMode

import opforge
from opforge import sim
from opforge.errors import SimulationError

pytestmark = pytest.mark.sim

KERNELS = (
    FINE
    + r"""
__global__ void fails(const int64_t* x, int64_t*) {
  if (x[0] == 0) assert(threadIdx.x < 5 && "the first");
  if (x[0] == 1) assert(threadIdx.x < 5 && "the second");
}

__global__ void races(const int64_t*, int64_t* y) { y[0] = threadIdx.x; }

// y: a counter, then the threads in the order they came, before and after a barrier.
__global__ void order(const int64_t*, int64_t* y) {
  int* turn = reinterpret_cast<int*>(y);
  y[1 + atomicAdd(turn, 1)] = number();
  __syncthreads();
  y[1 + atomicAdd(turn, 1)] = number();
}
"""
)

ROUTED_PY = """
import torch
from opforge import Backward, Op

op = Op(
    schema="sim_routed(Tensor x, bool count) -> Tensor y",
    reference=lambda x, count: 2 * x,
    backward=Backward(
        schema="sim_routed_backward(Tensor grad_y) -> Tensor grad_x",
        reference=lambda grad_y: 20 * grad_y,
    ),
    dtypes=(torch.float32,),
)
"""
# The CPU kernel multiplies by 3 and 30, the CUDA kernel by 5 and 50; or tells the multiprocessors.
ROUTED_CPP = """
#include <opforge/host.h>

using opforge::Tensor;

static Tensor times(const Tensor& given, float factor) {
  const Tensor x = opforge::contiguous(given);
  Tensor y = opforge::empty(opforge::sizes(x), x);
  for (int64_t i = 0; i < x.numel(); ++i)
    opforge::mutable_data<float>(y)[i] = factor * opforge::data<float>(x)[i];
  return y;
}
static Tensor forward(const Tensor& x, bool) { return times(x, 3); }
static Tensor backward(const Tensor& grad_y) { return times(grad_y, 30); }
OPFORGE_IMPL(sim_routed, forward)
OPFORGE_IMPL(sim_routed_backward, backward)
"""
ROUTED_CU = """
#include <opforge/host.h>

using opforge::Tensor;

__global__ void scale(const float* x, float* y, int64_t n, float factor, float plus) {
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) y[i] = factor * x[i] + plus;
}
static Tensor times(const Tensor& given, float factor, float plus) {
  const Tensor x = opforge::contiguous(given);
  opforge::DeviceGuard guard(x.get_device_index());
  Tensor y = opforge::empty(opforge::sizes(x), x);
  opforge::launch(scale, {1, 32, opforge::current_stream(x)}, opforge::data<float>(x),
                  opforge::mutable_data<float>(y), x.numel(), factor, plus);
  return y;
}
static Tensor forward(const Tensor& x, bool count) {
  return count ? times(x, 0, float(opforge::multiprocessors())) : times(x, 5, 0);
}
static Tensor backward(const Tensor& grad_y) { return times(grad_y, 50, 0); }
OPFORGE_IMPL(sim_routed, forward)
OPFORGE_IMPL(sim_routed_backward, backward)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_kernels(tmp_path_factory.mktemp("sim"), "sim_calls", KERNELS)


@pytest.fixture(scope="module")
def call(folder: Path) -> Call:
    return load_kernels(folder)


@pytest.fixture(scope="module")
def routed(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., torch.Tensor]:
    folder = tmp_path_factory.mktemp("sim") / "sim_routed"
    return opforge.load(write_op(folder, op_py=ROUTED_PY, cpp=ROUTED_CPP, cu=ROUTED_CU))


# --- order ----------------------------------------------------------------------------------------


def orders(call: Call, **options: Any) -> tuple[list[int], list[list[int]]]:
    """The order of the blocks, and of the threads in each before and after a barrier."""
    _, *found = call("order", grid=(12,), block=(40,), size=1 + 2 * 12 * 40, **options)
    halves = rows(found, 40)
    blocks = [half[0] // 40 for half in halves]
    assert [sorted(half) for half in halves] == [[40 * b + t for t in range(40)] for b in blocks]
    assert blocks[::2] == blocks[1::2]  # a block is not left before its end
    return blocks[::2], [[i % 40 for i in half] for half in halves]


@pytest.mark.parametrize("mode", ["plain", "race"])
@pytest.mark.nightly
def test_without_a_seed_everything_is_in_order(call: Call, mode: str) -> None:
    assert orders(call, mode=mode) == (list(range(12)), [list(range(40))] * 24)


@pytest.mark.nightly
def test_a_seed_shuffles_threads_and_blocks(call: Call) -> None:
    natural = orders(call)
    seeds = [0, 1, 2, 2**62 - 1]
    found = [orders(call, seed=seed) for seed in seeds]
    assert found == [orders(call, seed=seed) for seed in seeds]
    assert found == [orders(call, seed=seed, mode="race") for seed in seeds]
    assert orders(call) == natural
    for blocks, threads in found:
        assert sorted(blocks) == natural[0]
        assert blocks != natural[0]
        assert all(sorted(order) == natural[1][0] for order in threads)
        # Another order in every block, before and after its barrier.
        assert len({tuple(order) for order in threads}) == len(threads)
    assert len({tuple(blocks) for blocks, _ in found}) == len(seeds)
    assert len({tuple(threads[0]) for _, threads in found}) == len(seeds)


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"mode": "asan"}, RuntimeError, "AddressSanitizer.*opforge sim OP --asan"),
        ({"mode": "fast"}, ValueError, "'fast' must be one of 'plain', 'race', 'asan'"),
        ({"seed": -1}, ValueError, "seed=-1 must be a whole number from 0"),
        ({"seed": 2**63}, ValueError, "seed="),
        ({"traffic": True}, ValueError, "traffic=True needs mode='race'"),
    ],
)
def test_options_that_make_no_sense(
    call: Call,
    options: dict[str, Any],
    error: type[Exception],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    with pytest.raises(error, match=said):
        works(call, **options)


# --- what goes through the simulator --------------------------------------------------------------

X = torch.tensor([1.0, -2.0, 4.0])
Routed = Callable[..., torch.Tensor]


def factor(routed: Routed) -> float:
    (result,) = set((routed(X, False) / X).tolist())
    return result


def processors(routed: Routed) -> float:
    return routed(X, True)[0].item()


def test_active_routes_and_restores(routed: Routed) -> None:
    assert factor(routed) == 3
    with sim.active():
        assert factor(routed) == 5
    assert factor(routed) == 3
    with pytest.raises(KeyError), sim.active():
        raise KeyError
    assert factor(routed) == 3


def test_run_takes_a_function_a_record_or_a_folder(routed: Routed) -> None:
    record = opforge.discover.record_of(routed)
    for op in (routed, record, str(record.folder)):
        assert torch.equal(sim.run(op, X, False), 5 * X)
    assert factor(routed) == 3


@pytest.mark.parametrize("mode", ["plain", "race"])
def test_backward_goes_where_it_is_called(routed: Routed, mode: str) -> None:
    x = X.clone().requires_grad_()
    with sim.active(mode):
        y = routed(x, False)
        (inside,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
    (outside,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(y, 5 * X)
    assert inside.tolist() == [50] * 3
    assert outside.tolist() == [30] * 3


def test_the_dispatcher_and_transforms_are_routed(routed: Routed) -> None:
    op = getattr(torch.ops, opforge.discover.record_of(routed).namespace).sim_routed
    with sim.active():
        assert torch.equal(op(X, False), 5 * X)
        assert torch.equal(op(x=X, count=False), 5 * X)
        assert torch.equal(op(X, count=False), 5 * X)
        rowwise = torch.func.vmap(lambda x: routed(x, False))(X.expand(2, 3))
        gradient = torch.func.grad(lambda x: routed(x, False).sum())(X)
    assert torch.equal(rowwise, 5 * X.expand(2, 3))
    assert gradient.tolist() == [50] * 3


def test_everything_else_is_left_alone(routed: Routed) -> None:
    meta = X.to("meta")
    with sim.active():
        assert torch.equal(torch.relu(X), X.clamp(min=0))
        assert torch.equal(X.clone().add_(1), X + 1)
        y = routed(meta, False)
    assert y.device.type == "meta"
    assert y.shape == X.shape


def test_a_fake_tensor_passes_through(routed: Routed) -> None:
    with FakeTensorMode() as fake:
        x = fake.from_tensor(X)
        assert routed(x, False).shape == X.shape
        with sim.active():
            assert routed(x, False).shape == X.shape
    with sim.active(), fake:
        assert routed(x, False).shape == X.shape


def test_active_nests(routed: Routed) -> None:
    with sim.active():
        with sim.active("race"):
            assert factor(routed) == 5
        assert factor(routed) == 5
    assert factor(routed) == 3


def test_the_device_is_the_one_asked_for(routed: Routed) -> None:
    with sim.active():
        assert processors(routed) == 132
    with sim.active(device=sim.Device(multiprocessors=7)):
        assert processors(routed) == 7
    assert sim.run(routed, X, True)[0] == 132


def test_an_inner_context_leaves_the_outer_ones_device(routed: Routed) -> None:
    with sim.active(device=sim.Device(multiprocessors=7)):
        with sim.active(device=sim.Device(multiprocessors=9)):
            assert processors(routed) == 9
        assert processors(routed) == 7
        sim.run(routed, X, False)
        assert processors(routed) == 7


def test_an_inner_context_leaves_the_outer_ones_mode_and_seed(call: Call, folder: Path) -> None:
    function = opforge.load(folder)
    names = re.findall(r"__global__ void (\w+)\(", KERNELS)
    args = torch.zeros(1).long(), names.index("order"), [4, 1, 1], [32, 1, 1], 0, 1, 257
    shuffled = sim.run(function, *args, seed=3)
    with sim.active(seed=3):
        works(call)
        assert torch.equal(function(*args), shuffled)
    with pytest.raises(SimulationError, match="race: "), sim.active("race"):  # noqa: PT012
        works(call)
        function(args[0], names.index("races"), *args[2:])


def test_a_fault_can_be_caught_within_the_context(folder: Path) -> None:
    function = opforge.load(folder)
    names = re.findall(r"__global__ void (\w+)\(", KERNELS)
    args = [1, 1, 1], [32, 1, 1], 0, 1, 64
    x = torch.arange(64)
    with sim.active():
        with pytest.raises(SimulationError, match="the first"):
            function(x, names.index("fails"), *args)
        assert function(x, names.index("fine"), *args).tolist()[:3] == [32, 33, 34]


# --- several host threads -------------------------------------------------------------------------


def test_threads_call_at_the_same_time(call: Call) -> None:
    works(call)
    start = threading.Barrier(4)

    def many(offset: int) -> bool:
        start.wait()
        x = [offset + i for i in range(64 * 256)]
        options = {"grid": (64,), "block": (256,), "size": len(x)}
        return all(call("fine", x, **options) == [v + 256 for v in x] for _ in range(10))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(many, range(4)))


# In a process of its own, which a mistake here may well bring down.
AT_THE_SAME_TIME = """
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

sys.path.insert(0, sys.argv[1])
from sim_kernels import FINE, works, load_kernels

import opforge
from opforge import sim

call = load_kernels(Path(sys.argv[2]))
routed = opforge.load(sys.argv[3])
x = list(range(1024))
shape = {"grid": (4,), "block": (256,), "size": 1024}


def fine(**options):
    assert call("fine", x, **shape, **options) == [v + 256 for v in x]


def device(count):
    found = sim.run(routed, torch.ones(3), True, device=sim.Device(multiprocessors=count))
    assert found.tolist() == [count] * 3


def faulty(which, said):
    try:
        call("fails", [which], grid=(2,))
    except sim.SimulationError as error:
        assert str(error).startswith("opforge simulator found 1 fault"), str(error)
        assert said in str(error), str(error)
    else:
        raise AssertionError("no fault")


def repeat(job):
    for _ in range(60):
        job()


jobs = [
    lambda: fine(),
    lambda: fine(mode="race"),
    lambda: device(7),
    lambda: device(9),
    lambda: faulty(0, "the first"),
    lambda: faulty(1, "the second"),
]
with ThreadPoolExecutor(len(jobs)) as pool:
    list(pool.map(repeat, jobs))
"""


@pytest.mark.nightly
def test_threads_do_different_things_at_the_same_time(
    call: Call, folder: Path, routed: Routed
) -> None:
    works(call)  # compiled
    works(call, mode="race")
    sim.run(routed, X, True)
    record = opforge.discover.record_of(routed)
    python(AT_THE_SAME_TIME, Path(__file__).parents[1] / "support", folder, record.folder)
