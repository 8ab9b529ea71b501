# SPDX-License-Identifier: Apache-2.0
"""What stops a simulated kernel is told with block, thread and line, and harms nothing after it."""

from __future__ import annotations

import re
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
from sim_kernels import FINE, Call, line_of, load_kernels, works, write_kernels

from opforge import sim
from opforge.errors import SimulationError

pytestmark = pytest.mark.sim

KERNELS = (
    FINE
    + r"""
// --- stopped by the kernel itself ----------------------------------------------------------------

__device__ void checked(int i) {
  assert(i < 37 && "in a function");
}

__global__ void fails(const int64_t* x, int64_t* y) {
  const int i = number();
  if (x[0] == 0) assert(i < 5 && "the first");
  if (x[0] == 1) assert(i != 40);
  if (x[0] == 2) checked(i);
  if (x[0] == 3 && i == 33) __trap();  // the one
  if (x[0] == 4 && i == 34) __trap();  // the other
  __syncthreads();
  if (i == 0) y[0] = 1;
}

// --- never ends ----------------------------------------------------------------------------------

__global__ void spins(const int64_t*, int64_t* y) {
  volatile int64_t* flag = y;
  while (*flag == 0) {
  }
}

__global__ void spins_on_an_atomic(const int64_t*, int64_t* y) {
  while (atomicAdd(reinterpret_cast<int*>(y), 0) == 0) {
  }
}

__global__ void spins_in_registers(const int64_t*, int64_t*) {
  for (volatile unsigned i = 0;; i = i + 1) {
  }
}

__global__ void spins_through_a_barrier(const int64_t*, int64_t* y) {
  while (__syncthreads_or(y[0] == 0)) {
  }
}

// Only in the last block, when the others are long done.
__global__ void spins_at_last(const int64_t*, int64_t* y) {
  volatile int64_t* flag = y;
  while (blockIdx.x == gridDim.x - 1 && *flag == 0) {
  }
}

__global__ void waits_for_all(const int64_t*, int64_t* y) {
  if (threadIdx.x < 20) {
    __syncthreads();  // some
  } else {
    __syncwarp(0xffffffffu);  // others
  }
  y[0] = 1;
}

// --- no fault, but odd ---------------------------------------------------------------------------

__global__ void leaves_early(const int64_t*, int64_t* y) {
  if (threadIdx.x >= 20) return;
  __syncthreads();  // without the others
  y[threadIdx.x] = 1;
}

__launch_bounds__(1024) __global__ void nothing(const int64_t*, int64_t*) {}
"""
)


@pytest.fixture(scope="module")
def call(tmp_path_factory: pytest.TempPathFactory) -> Call:
    return load_kernels(write_kernels(tmp_path_factory.mktemp("sim"), "sim_faults", KERNELS))


def place(marker: str) -> str:
    return f"cuda.cu:{line_of(KERNELS, marker)} in "


# --- launches that the device does not take -------------------------------------------------------


# What cudaLaunchKernelEx says on a GPU.
@pytest.mark.parametrize(
    "shape",
    [
        {"block": (1025,)},
        {"block": (32, 33)},
        {"block": (1, 1, 65)},
        {"block": (0,)},
        {"grid": (0,)},
        {"grid": (2**31,)},
        {"grid": (1, 65536)},
        {"grid": (1, 1, 65536)},
        {"grid": (1, 1, 0)},
        {"shared": 227 * 1024 + 1},
        {"block": (513,), "device": sim.Device(threads_per_block=512)},
        {"shared": 50001, "device": sim.Device(most_shared_per_block=50000)},
    ],
    ids=str,
)
def test_launch_beyond_a_limit(call: Call, shape: dict[str, Any]) -> None:
    with pytest.raises(RuntimeError, match="cudaErrorInvalidValue") as failure:
        call("nothing", **shape)
    assert not isinstance(failure.value, SimulationError)  # CUDA says so, too
    assert "launching a kernel with grid (" in str(failure.value)
    works(call)


def test_a_failed_launch_says_how_many_threads_the_kernel_takes(call: Call) -> None:
    with pytest.raises(
        RuntimeError, match=r"block 513, .*; it takes 512 threads to a block at most"
    ):
        call("nothing", block=(513,), device=sim.Device(threads_per_block=512))
    with pytest.raises(RuntimeError) as failure:
        call("nothing", grid=(0,))
    assert "it takes" not in str(failure.value)  # another limit


@pytest.mark.parametrize(
    "shape",
    [
        {"block": (1024,)},
        {"block": (16, 1, 64)},
        {"grid": (1, 65535)},
        {"grid": (1, 1, 65535)},
        {"grid": (65536,)},
        {"shared": 48 * 1024 + 1},
        {"shared": 227 * 1024},
    ],
    ids=str,
)
def test_launch_at_a_limit(call: Call, shape: dict[str, Any]) -> None:
    call("nothing", **shape)


# --- faults ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["plain", "race"])
@pytest.mark.parametrize(
    ("which", "thread", "block", "said", "where"),
    [
        (0, 5, 0, 'fails: i < 5 && "the first"', place("the first") + "fails"),
        (1, 8, 1, "fails: i != 40", place("i != 40") + "fails"),
        (2, 5, 1, 'fails: i < 37 && "in a function"', place("in a function") + "checked"),
        (3, 1, 1, "calls __trap()", place("// the one") + "fails"),
        (4, 2, 1, "calls __trap()", place("// the other") + "fails"),
    ],
)
def test_assert_and_trap(
    call: Call, which: int, thread: int, block: int, said: str, where: str, mode: str
) -> None:
    with pytest.raises(SimulationError) as failure:
        call("fails", [which], grid=(2,), mode=mode)
    told = str(failure.value)
    assert told.startswith("opforge simulator found 1 fault\n")
    assert f": thread ({thread},0,0) of block ({block},0,0) {said}\n    at {where}" in told
    assert "kernel fails" in told
    works(call, mode=mode)


@pytest.mark.parametrize("mode", ["plain", "race"])
@pytest.mark.parametrize("kernel", [k for k in re.findall(r"void (\w+)", KERNELS) if "spins" in k])
def test_a_kernel_that_never_ends(
    call: Call, kernel: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    works(call, mode=mode)  # compiled
    monkeypatch.setenv("OPFORGE_SIM_TIMEOUT", "1")
    start = time.monotonic()
    with pytest.raises(SimulationError, match="timeout: thread ") as failure:
        call(kernel, grid=(64,) if kernel == "spins_at_last" else (1,), block=(256,), mode=mode)
    assert time.monotonic() - start > 0.9
    assert "after 1 s (OPFORGE_SIM_TIMEOUT)" in str(failure.value)
    assert f"kernel {kernel}" in str(failure.value)
    works(call, mode=mode)


@pytest.mark.parametrize("mode", ["plain", "race"])
def test_a_deadlock_is_reported_at_once(
    call: Call, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    works(call, mode=mode)
    monkeypatch.setenv("OPFORGE_SIM_TIMEOUT", "100")  # a block that takes longer is a timeout
    with pytest.raises(SimulationError, match="deadlock: no thread of block") as failure:
        call("waits_for_all", mode=mode)
    told = str(failure.value)
    assert f"20 threads wait at the barrier {place('// some')}" in told
    assert f"12 threads wait in __syncwarp with mask 0xffffffff {place('// others')}" in told
    works(call, mode=mode)


@pytest.mark.parametrize("time", ["soon", "0", "-1", "1.5"])
def test_a_timeout_that_is_no_number(
    call: Call, time: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPFORGE_SIM_TIMEOUT", time)
    with pytest.raises(ValueError, match="OPFORGE_SIM_TIMEOUT"):
        works(call)


@pytest.mark.parametrize("mode", ["plain", "race"])
def test_early_exit_is_a_warning(call: Call, mode: str) -> None:
    for _ in range(2):  # every time
        with pytest.warns(UserWarning, match=r"early-exit: 12 threads of block \(0,0,0\)") as told:
            assert call("leaves_early", size=32, mode=mode) == [1] * 20 + [0] * 12
        assert len(told) == 1
        assert place("// without the others") in str(told[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        works(call, mode=mode)


# --- places ---------------------------------------------------------------------------------------

PLACES = r"""
__global__ void trap(const int64_t*, int64_t*) {
  if (threadIdx.x == 3) __trap();
}
__global__ void overflow(const int64_t*, int64_t* y) {
  y[0] = threadIdx.x * 0xf0000000u;
}
__global__ void added_overflow(const int64_t*, int64_t* y) {
  int i = 0x7fffffff;
  i += threadIdx.x;  // into an int
  y[0] = i;
}
__global__ void barrier(const int64_t*, int64_t*) {
  if (threadIdx.x < 3) __syncthreads();
  else __syncwarp();
}
__global__ void width(const int64_t*, int64_t* y) {
  y[threadIdx.x] = __shfl_sync(0xffffffffu, 1, 0, 5);
}
__global__ void atomic(const int64_t*, int64_t* y) {
  atomicAdd(reinterpret_cast<int*>(reinterpret_cast<char*>(y) + 2), 1);
}
"""


@pytest.mark.nightly
def test_places_without_optimisation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Nothing is inlined, so the runtime is called from functions of the simulator's headers.
    monkeypatch.setenv("DEBUG", "1")
    call = load_kernels(write_kernels(tmp_path, "sim_places", PLACES))
    told = {}
    for kernel, marker in {
        "trap": "__trap()",
        "overflow": "0xf0000000u",
        "added_overflow": "// into an int",
        "barrier": "__syncthreads()",
        "width": "0, 5)",
        "atomic": "atomicAdd",
    }.items():
        with pytest.raises(SimulationError) as failure:
            call(kernel, size=32)
        if f"cuda.cu:{line_of(PLACES, marker)} in {kernel}" not in str(failure.value):
            told[kernel] = str(failure.value)
    assert told == {}
