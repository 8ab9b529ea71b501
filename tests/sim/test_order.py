# SPDX-License-Identifier: Apache-2.0
"""What orders two accesses and what does not: right kernels pass, wrong ones are named."""

from __future__ import annotations

import re

import pytest
import torch
from helpers import write_op
from sim_kernels import Call, load_kernels, write_kernels

import opforge
from opforge import sim
from opforge.errors import SimulationError

pytestmark = pytest.mark.sim

KERNELS = r"""
struct Counter {
  int count, flag;
  int64_t value[64];
};

// --- right ---------------------------------------------------------------------------------------

__global__ void right_shared_atomics(const int64_t*, int64_t* y) {
  Counter& s = opforge::shared<Counter>();
  if (threadIdx.x == 0) s.count = 0;
  __syncthreads();
  atomicAdd(&s.count, 1);
  __syncthreads();
  y[blockIdx.x * blockDim.x + threadIdx.x] = s.count;
}

// y[0] counts arrivals; everybody fences for itself and one thread tells, as libraries do it.
__global__ void right_fence_then_barrier(const int64_t*, int64_t* y) {
  Counter& s = opforge::shared<Counter>();
  const int n = gridDim.x * blockDim.x;
  y[8 + blockIdx.x * blockDim.x + threadIdx.x] = 1;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) s.flag = atomicAdd((int*)y, 1) == gridDim.x - 1;
  __syncthreads();
  if (s.flag && threadIdx.x == 0) {
    for (int i = 0; i < n; ++i) y[1] += y[8 + i];
  }
}

__global__ void right_last_block_resets(const int64_t*, int64_t* y) {
  Counter& s = opforge::shared<Counter>();
  const int64_t seen = y[2];  // by all blocks, before the last one writes it
  __syncthreads();
  if (threadIdx.x == 0) {
    atomicAdd((int*)(y + 1), 1 + int(seen));
    __threadfence();
    s.flag = atomicAdd((int*)y, 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (s.flag && threadIdx.x == 0) {
    __threadfence();
    y[3] = *(int*)(y + 1);
    y[2] = 7;
    y[0] = 0;
  }
}

// Warps of one block hand over through a ticket, in global and in shared memory.
__global__ void right_warp_tickets(const int64_t*, int64_t* y) {
  Counter& s = opforge::shared<Counter>();
  const int warp = threadIdx.x / 32, warps = blockDim.x / 32;
  if (threadIdx.x == 0) s.count = 0;
  __syncthreads();
  if (threadIdx.x % 32 == 0) {
    y[8 + warp] = warp + 1;
    s.value[warp] = warp + 1;
    __threadfence();
    const bool last = atomicAdd((int*)y, 1) == warps - 1;
    __threadfence();
    if (last) {
      for (int i = 0; i < warps; ++i) y[1] += y[8 + i];
    }
    __threadfence_block();
    const bool last_here = atomicAdd(&s.count, 1) == warps - 1;
    __threadfence_block();
    if (last_here) {
      for (int i = 0; i < warps; ++i) y[2] += s.value[i];
    }
  }
}

__global__ void right_spin_lock(const int64_t*, int64_t* y) {
  if (threadIdx.x != 0) return;
  while (atomicCAS((int*)y, 0, 1) != 0) {
  }
  __threadfence();
  y[1] += 1;
  __threadfence();
  atomicExch((int*)y, 0);
}

__global__ void right_copies(const int64_t* x, int64_t* y) {
  Counter& s = opforge::shared<Counter>();
  if (threadIdx.x == 0) memset(&s, 0, sizeof s);
  __syncthreads();
  int64_t four[4] = {s.value[3], 1, 2, 3};
  memcpy(y + 4 * threadIdx.x, four, sizeof four);
}

__global__ void right_wrapping_sum(const int64_t*, int64_t* y) {
  atomicAdd((int*)y, 0x7fffffff);
}

// --- wrong ---------------------------------------------------------------------------------------

__global__ void wrong_atomic_beside_its_reset(const int64_t*, int64_t* y) {
  Counter& s = opforge::shared<Counter>();
  if (threadIdx.x == 0) s.count = 0;
  atomicAdd(&s.count, 1);
  __syncthreads();
  if (threadIdx.x == 0) y[0] = s.count;
}

__global__ void wrong_read_beside_atomics(const int64_t*, int64_t* y) {
  Counter& s = opforge::shared<Counter>();
  if (threadIdx.x == 0) s.count = 0;
  __syncthreads();
  atomicAdd(&s.count, 1);
  if (threadIdx.x == blockDim.x - 1) y[0] = s.count;
}

__global__ void wrong_read_of_other_blocks_atomics(const int64_t*, int64_t* y) {
  atomicAdd((int*)y, 1);
  if (blockIdx.x == gridDim.x - 1 && threadIdx.x == blockDim.x - 1) y[1] = *(int*)y;
}

// One thread fences, but not the ones that wrote in the same epoch.
__global__ void wrong_fence_of_another_thread(const int64_t*, int64_t* y) {
  Counter& s = opforge::shared<Counter>();
  y[8 + blockIdx.x * blockDim.x + threadIdx.x] = 1;
  if (threadIdx.x == 0) {
    __threadfence();
    s.flag = atomicAdd((int*)y, 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (s.flag && threadIdx.x == 0) y[1] = y[8 + threadIdx.x + 1];
}

// Fenced for the block only.
__global__ void wrong_scope(const int64_t*, int64_t* y) {
  Counter& s = opforge::shared<Counter>();
  if (threadIdx.x == 0) {
    y[8 + blockIdx.x] = 1;
    __threadfence_block();
    s.flag = atomicAdd((int*)y, 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (s.flag && threadIdx.x == 0) y[1] = y[8];
}

__global__ void wrong_copy_from_a_neighbour(const int64_t*, int64_t* y) {
  Counter& s = opforge::shared<Counter>();
  s.value[threadIdx.x] = threadIdx.x;
  memcpy(y + 4 * threadIdx.x, &s.value[threadIdx.x / 4 * 4], 32);
}

__global__ void wrong_null_atomic(const int64_t* x, int64_t*) { atomicAdd((int*)x[0], 1); }

__global__ void wrong_large_array(const int64_t*, int64_t* y) {
  volatile char bytes[600 << 10];
  bytes[threadIdx.x] = 1;
  y[0] = bytes[threadIdx.x];
}
"""

RIGHT = {
    "right_shared_atomics": {"size": 192},
    "right_fence_then_barrier": {"size": 8 + 192},
    "right_last_block_resets": {"size": 8},
    "right_warp_tickets": {"grid": (1,), "size": 16},
    "right_spin_lock": {"grid": (40,), "size": 2},
    "right_copies": {"grid": (1,), "size": 256},
    "right_wrapping_sum": {"size": 1},
}
WRONG = {
    "wrong_atomic_beside_its_reset": "race: .*changes with an atomic shared memory .* wrote",
    "wrong_read_beside_atomics": "race: .*reads shared memory .* with no barrier between",
    "wrong_read_of_other_blocks_atomics": "race|missing-fence: .*reads global memory",
    "wrong_fence_of_another_thread": "missing-fence: .*without a __threadfence",
    "wrong_scope": "missing-fence: .*without a __threadfence",
    "wrong_copy_from_a_neighbour": r"race: .*reads shared memory",
    "wrong_null_atomic": "bad-address: .*memory that is not there",
    "wrong_large_array": "stack-overflow: .*more stack",
}
assert set(RIGHT) | set(WRONG) == set(re.findall(r"__global__ void (\w+)\(", KERNELS))


@pytest.fixture(scope="module")
def call(tmp_path_factory: pytest.TempPathFactory) -> Call:
    return load_kernels(write_kernels(tmp_path_factory.mktemp("sim"), "sim_order", KERNELS))


@pytest.mark.parametrize("seed", [None, 0, 1])
@pytest.mark.parametrize("kernel", RIGHT)
def test_right_kernels_pass(call: Call, kernel: str, seed: int | None) -> None:
    options = {"grid": (3,), "block": (64,), **RIGHT[kernel]}
    y = call(kernel, mode="race", seed=seed, **options)
    if kernel == "right_fence_then_barrier":
        assert y[1] == 192
    elif kernel == "right_last_block_resets":
        assert y[:4] == [0, 3, 7, 3]
    elif kernel == "right_warp_tickets":
        assert y[1] == y[2] == 3
    elif kernel == "right_spin_lock":
        assert y[1] == 40


@pytest.mark.parametrize("seed", [None, 0])
@pytest.mark.parametrize("kernel", WRONG)
def test_wrong_kernels_are_named(call: Call, kernel: str, seed: int | None) -> None:
    with pytest.raises(SimulationError, match=f"(?s){WRONG[kernel]}"):
        call(kernel, grid=(3,), block=(64,), size=8 + 256, mode="race", seed=seed)
    assert call("right_wrapping_sum", mode="race") == [32 * 0x7FFFFFFF % 2**32]  # life goes on


def test_nobody_races_with_itself(call: Call) -> None:
    with pytest.raises(SimulationError) as failure:
        call("wrong_copy_from_a_neighbour", block=(64,), size=256, mode="race")
    for reader, writer in re.findall(
        r"(thread \(\d+,0,0\)).*?that (thread \(\d+,0,0\))", str(failure)
    ):
        assert reader != writer


OVERLAP = """
#include <opforge/host.h>

namespace opforge {

__global__ void first(float* w) { w[threadIdx.x] += 1.f; }

__global__ void second(float* w, float* y, int way) {
  if (way == 1) await_previous();
  if (way == 2) {
    if (threadIdx.x == 0) await_previous();
    __syncthreads();
  }
  w[threadIdx.x] += 1.f;
  y[threadIdx.x] = w[threadIdx.x];
}

Tensor sim_overlap(const Tensor& x, int64_t way) {
  const DeviceGuard guard(x.get_device_index());
  const Tensor w = empty(sizes(x), x), y = empty(sizes(x), x);
  fill_zero(w);
  const dim3 block(unsigned(x.numel()));
  launch(first, {dim3(1), block, current_stream(x)}, mutable_data<float>(w));
  launch(second, {dim3(1), block, current_stream(x), 0, true}, mutable_data<float>(w),
         mutable_data<float>(y), int(way));
  return y;
}

OPFORGE_IMPL(sim_overlap, sim_overlap)

}  // namespace opforge
"""
OVERLAP_OP = """
import torch
from opforge import Op

op = Op(
    schema="sim_overlap(Tensor x, int way) -> Tensor y",
    reference=lambda x, way: x + 2,
    dtypes=(torch.float32,),
)
"""


def test_a_kernel_that_overlaps_the_one_before_has_to_wait(tmp_path) -> None:
    folder = write_op(tmp_path / "sim_overlap", op_py=OVERLAP_OP, cpp=None, cu=OVERLAP)
    function, x = opforge.load(folder), torch.zeros(64)
    for way in (1, 2):
        assert sim.run(function, x, way, mode="race").tolist() == [2.0] * 64
    with pytest.raises(SimulationError, match=r"of the kernel before wrote, without await_prev"):
        sim.run(function, x, 0, mode="race")
