# SPDX-License-Identifier: Apache-2.0
"""Launches on the wrong device or stream, and calls that wait: what one GPU alone never shows."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from helpers import write_op
from op_cases import nightly_but, record

import opforge
from opforge import sim
from opforge.errors import SimulationError
from opforge.op import Make, as_tuple
from opforge.sim import simulation

pytestmark = pytest.mark.sim

OP_PY = """
import torch
from opforge import Op

op = Op(
    schema="sim_placed(Tensor x, int which) -> Tensor y",
    reference=lambda x, which: x.clone(),
    dtypes=(torch.float32,),
)
"""
HOST = """\
#include <opforge/host.h>

#include <future>

using namespace opforge;

__global__ void copy(const float* x, float* y, int64_t n) {
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) y[i] = x[i];
}
static void launch_on(cudaStream_t stream, const Tensor& x, const Tensor& y) {
  launch(copy, {1, 32, stream}, data<float>(x), mutable_data<float>(y), x.numel());
}

// --- right ---------------------------------------------------------------------------------------

static void plain(const Tensor& x, const Tensor& y) {
  const DeviceGuard guard(x.get_device_index());
  launch_on(current_stream(x), x, y);
}
static void guards_within_a_guard(const Tensor& x, const Tensor& y) {
  const DeviceGuard guard(x.get_device_index());
  { const DeviceGuard other(0); }
  { const DeviceGuard same(x.get_device_index()); }
  launch_on(current_stream(x), x, y);
}
static void from_another_thread(const Tensor& x, const Tensor& y) {
  std::async(std::launch::async, [&] { plain(x, y); }).get();
}

// --- wrong ---------------------------------------------------------------------------------------

static void no_guard(const Tensor& x, const Tensor& y) {
  launch_on(current_stream(x), x, y);
}
static void guard_that_is_gone(const Tensor& x, const Tensor& y) {
  DeviceGuard(x.get_device_index());
  launch_on(current_stream(x), x, y);
}
static void guard_of_another_device(const Tensor& x, const Tensor& y) {
  const DeviceGuard guard(x.get_device_index());
  const DeviceGuard other(0);
  launch_on(current_stream(x), x, y);
}
static void guard_of_another_thread(const Tensor& x, const Tensor& y) {
  const DeviceGuard guard(x.get_device_index());
  std::async(std::launch::async, [&] { launch_on(current_stream(x), x, y); }).get();
}
static void default_stream(const Tensor& x, const Tensor& y) {
  const DeviceGuard guard(x.get_device_index());
  launch_on(nullptr, x, y);
}
static void no_guard_and_default_stream(const Tensor& x, const Tensor& y) {
  launch_on(nullptr, x, y);
}
static void waits_for_the_device(const Tensor& x, const Tensor& y) {
  plain(x, y);
  cuda_check(cudaDeviceSynchronize(), "waiting");  // here
}
static void waits_for_the_stream(const Tensor& x, const Tensor& y) {
  plain(x, y);
  cuda_check(cudaStreamSynchronize(current_stream(x)), "waiting");  // there
}
static void waits_and_fails(const Tensor& x, const Tensor&) {
  cudaDeviceSynchronize();
  fail("fails by itself");
}
"""
NAMES = re.findall(r"static void (\w+)\(const Tensor& x", HOST)
IMPL = f"""
static Tensor run(const Tensor& x, int64_t which) {{
  constexpr void (*functions[])(const Tensor&, const Tensor&) = {{{", ".join(NAMES)}}};
  const Tensor y = empty(sizes(x), x);
  functions[which](x, y);
  return y;
}}
OPFORGE_IMPL(sim_placed, run)
"""
RIGHT = NAMES[:3]
GUARD = (
    "device-guard: kernel copy is launched on the current device, not on that of its tensors; "
    "put `const DeviceGuard guard(x.get_device_index());` before it"
)
STREAM = (
    "stream: kernel copy is launched on another stream than the current one, so nothing orders it "
    "after what makes its tensors; pass `current_stream(x)`"
)
WAITS = (
    "makes the host wait for the GPU and cannot be captured in a CUDA graph; remove it, a stream "
    "keeps its order anyway"
)
LAUNCH = "  launch(copy, "
# What is said about each, and the line it points to.
WRONG = {
    "no_guard": ([GUARD], LAUNCH),
    "guard_that_is_gone": ([GUARD], LAUNCH),
    "guard_of_another_device": ([GUARD], LAUNCH),
    "guard_of_another_thread": ([GUARD], LAUNCH),
    "default_stream": ([STREAM], LAUNCH),
    "no_guard_and_default_stream": ([GUARD, STREAM], LAUNCH),
    "waits_for_the_device": ([f"synchronises: cudaDeviceSynchronize() {WAITS}"], "// here"),
    "waits_for_the_stream": ([f"synchronises: cudaStreamSynchronize() {WAITS}"], "// there"),
}
X = torch.tensor([1.0, -2.0, 4.0])
Placed = Callable[..., torch.Tensor]


@pytest.fixture(scope="module")
def placed(tmp_path_factory: pytest.TempPathFactory) -> Placed:
    folder = tmp_path_factory.mktemp("sim") / "sim_placed"
    function = opforge.load(write_op(folder, op_py=OP_PY, cpp=None, cu=HOST + IMPL))
    return lambda name: function(X, NAMES.index(name))


def test_every_function_is_in_a_table() -> None:
    assert [*RIGHT, *WRONG, "waits_and_fails"] == NAMES


@pytest.mark.parametrize("mode", ["plain", "race"])
@pytest.mark.parametrize("name", WRONG)
def test_the_fault_is_named(placed: Placed, name: str, mode: simulation.Mode) -> None:
    said, at = WRONG[name]
    with pytest.raises(SimulationError) as raised, sim.active(mode, placement=True):
        placed(name)
    first, *lines = str(raised.value).splitlines()
    (line,) = [i for i, text in enumerate(HOST.splitlines(), 1) if at in text]
    assert first == f"opforge simulator found {len(said)} fault{'s'[: len(said) - 1]}"
    assert lines[::2] == [f"  {text}" for text in said]
    assert all(place.startswith(f"    at cuda.cu:{line} in ") for place in lines[1::2]), lines


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_raises_no_alarm(placed: Placed, name: str) -> None:
    with sim.active(placement=True):
        assert torch.equal(placed(name), X)


@pytest.mark.parametrize("name", [*RIGHT, *WRONG])
def test_it_is_an_option(placed: Placed, name: str) -> None:
    with sim.active():
        assert torch.equal(placed(name), X)


def test_an_inner_context_leaves_the_outer_ones_placement(placed: Placed) -> None:
    with sim.active(placement=True):
        with sim.active():
            assert torch.equal(placed("no_guard"), X)
        with pytest.raises(SimulationError, match="device-guard: "):
            placed("no_guard")


def test_a_fault_leaves_nothing_behind(placed: Placed) -> None:
    with sim.active(placement=True):
        for name in WRONG:
            with pytest.raises(SimulationError):
                placed(name)
            assert torch.equal(placed("plain"), X)
        with pytest.raises(RuntimeError, match=r"^fails by itself"):
            placed("waits_and_fails")
        assert torch.equal(placed("plain"), X)


# The check's rows `other-device` and `side-stream` do this for every op.
@nightly_but("reduce_sum")
def test_the_built_in_ops_are_right(name: str) -> None:
    with sim.active(placement=True):
        for case in record(name).iter_cases(Make(requires_grad=True)):
            results = as_tuple(record(name)(*case))
            torch.autograd.backward(results, [torch.ones_like(r) for r in results])
        route = simulation.current()
        assert route is not None
        assert route.routed > 10


def test_run_takes_the_option() -> None:
    assert torch.equal(sim.run("relu", X, placement=True), X.clamp(min=0))
