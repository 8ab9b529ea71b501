# SPDX-License-Identifier: Apache-2.0
"""Barriers with phases and bulk copies: right kernels are right, wrong ones are named."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from sim_kernels import EACH_MACHINE, FINE, WAYS, Call, load_kernels, works, write_kernels

import opforge
from opforge import sim
from opforge.errors import SimulationError

pytestmark = pytest.mark.sim

RIGHT = r"""
using namespace opforge;

constexpr int kTile = 128, kStages = 3, kBytes = kTile * 8;
struct Ring {
  alignas(128) int64_t data[kStages][kTile];
  Barrier full[kStages], empty[kStages];
};

__device__ void make_barriers(Ring& s, int readers) {
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) init(s.full[i], 1), init(s.empty[i], readers);
    publish_barriers();
  }
  __syncthreads();
}

__device__ void fill(Ring& s, int stage, const int64_t* from) {
  arrive_expecting(s.full[stage], kBytes);
  bulk_copy(s.data[stage], from, kBytes, s.full[stage]);
}

// y is x, each tile backwards plus itself: elements are read by two warps. x[0] counts the tiles,
// which begin at x + 2.
__device__ void read_tile(Ring& s, int stage, int64_t* y, int tile, int i, int n) {
  for (; i < kTile; i += n) y[tile * kTile + i] = s.data[stage][i] + s.data[stage][kTile - 1 - i];
}

// Blocks stay; one thread refills a stage once all have told that they are done with it.
__global__ void ring(const int64_t* x, int64_t* y) {
  Ring& s = shared<Ring>();
  const int tiles = int(x[0]), step = gridDim.x;
  make_barriers(s, blockDim.x);
  if (threadIdx.x == 0) {
    for (int k = 0; k < kStages && blockIdx.x + k * step < tiles; ++k) {
      fill(s, k, x + 2 + (blockIdx.x + k * step) * kTile);
    }
  }
  int k = 0;
  for (int tile = blockIdx.x; tile < tiles; tile += step, ++k) {
    const int stage = k % kStages, phase = k / kStages % 2, next = tile + kStages * step;
    wait(s.full[stage], phase);
    read_tile(s, stage, y, tile, threadIdx.x, blockDim.x);
    arrive(s.empty[stage]);
    if (threadIdx.x == 0 && next < tiles) {
      wait(s.empty[stage], phase);
      fill(s, stage, x + 2 + next * kTile);
    }
  }
}

// A warp fills, the others read. At the start stages are empty: the phase before the first is over.
__global__ void warps_apart(const int64_t* x, int64_t* y) {
  Ring& s = shared<Ring>();
  const int tiles = int(x[0]), readers = blockDim.x - 32;
  make_barriers(s, readers / 32);
  for (int k = 0, tile = blockIdx.x; tile < tiles; tile += gridDim.x, ++k) {
    const int stage = k % kStages, phase = k / kStages % 2;
    if (threadIdx.x == 0) {
      wait(s.empty[stage], phase ^ 1);
      fill(s, stage, x + 2 + tile * kTile);
    } else if (threadIdx.x >= 32) {
      wait(s.full[stage], phase);
      read_tile(s, stage, y, tile, threadIdx.x - 32, readers);
      __syncwarp();
      if (threadIdx.x % 32 == 0) arrive(s.empty[stage]);
    }
  }
}

// The same with __syncthreads, after one thread has waited for all.
__global__ void one_waits(const int64_t* x, int64_t* y) {
  Ring& s = shared<Ring>();
  make_barriers(s, 1);
  for (int k = 0; k < int(x[0]); ++k) {
    if (threadIdx.x == 0) {
      bulk_copy(s.data[0], x + 2 + k * kTile, kBytes / 2, s.full[0]);
      bulk_copy(s.data[0] + kTile / 2, x + 2 + k * kTile + kTile / 2, kBytes / 2, s.full[0]);
      arrive_expecting(s.full[0], kBytes);
      wait(s.full[0], k % 2);
    }
    __syncthreads();
    read_tile(s, 0, y, k, threadIdx.x, blockDim.x);
    __syncthreads();
  }
}

// Back to global memory, from two buffers in turn.
__global__ void stores(const int64_t* x, int64_t* y) {
  Ring& s = shared<Ring>();
  for (int k = 0; k < int(x[0]); ++k) {
    if (threadIdx.x == 0) bulk_wait_read<1>();
    __syncthreads();
    for (int i = threadIdx.x; i < kTile; i += blockDim.x) {
      s.data[k % 2][i] = x[2 + k * kTile + i] + x[2 + k * kTile + kTile - 1 - i];
    }
    fence_for_copies();
    __syncthreads();
    if (threadIdx.x == 0) {
      bulk_store(y + k * kTile, s.data[k % 2], kBytes);
      bulk_commit();
    }
  }
  if (threadIdx.x == 0) bulk_wait_read<0>();
}

// Every block copies a tile, its neighbour in the cluster reads it.
__global__ void for_the_cluster(const int64_t* x, int64_t* y) {
  Ring& s = shared<Ring>();
  make_barriers(s, 1);
  const int rank = cluster_rank() ^ 1, theirs = blockIdx.x ^ 1;
  for (int k = 0; blockIdx.x + 2 * k < int(x[0]); ++k) {
    if (threadIdx.x == 0) fill(s, 0, x + 2 + (blockIdx.x + 2 * k) * kTile);
    wait(s.full[0], k % 2);
    cluster_sync();
    for (int i = threadIdx.x; i < kTile; i += blockDim.x) {
      const int64_t* there = in_block(s.data[0], rank);
      y[(theirs + 2 * k) * kTile + i] = there[i] + there[kTile - 1 - i];
    }
    cluster_sync();
  }
}
"""
WRONG = r"""
struct Start {
  Ring& s;
  __device__ Start() : s(shared<Ring>()) { make_barriers(s, 1); }
  __device__ bool operator()() const { return threadIdx.x == 0; }
};

__global__ void wrong_no_wait(const int64_t* x, int64_t* y) {
  const Start start;
  if (start()) fill(start.s, 0, x);
  __syncthreads();
  y[threadIdx.x] = start.s.data[0][threadIdx.x];
  wait(start.s.full[0], 0);
}

__global__ void wrong_phase(const int64_t* x, int64_t* y) {
  const Start start;
  for (int k = 0; k < 2; ++k) {
    if (start()) fill(start.s, 0, x);
    wait(start.s.full[0], 0);  // the second time it is over
    y[threadIdx.x] = start.s.data[0][threadIdx.x];
    __syncthreads();
  }
  wait(start.s.full[0], 1);
}

__global__ void wrong_refill(const int64_t* x, int64_t* y) {
  const Start start;
  for (int k = 0; k < 2; ++k) {
    if (start()) fill(start.s, 0, x);
    wait(start.s.full[0], k);
    y[threadIdx.x] = start.s.data[0][threadIdx.x];
  }
}

// Only one warp tells that it is done.
__global__ void wrong_arrivals_of_one_warp(const int64_t* x, int64_t* y) {
  const Start start;
  for (int k = 0; k < 2; ++k) {
    if (start()) fill(start.s, 0, x);
    wait(start.s.full[0], k);
    y[threadIdx.x] = start.s.data[0][0];
    if (threadIdx.x < 32) __syncwarp();
    if (start()) arrive(start.s.empty[0]), wait(start.s.empty[0], k);
  }
}

__global__ void wrong_too_few_bytes(const int64_t* x, int64_t*) {
  const Start start;
  if (start()) {
    arrive_expecting(start.s.full[1], kBytes);
    bulk_copy(start.s.data[1], x, kBytes / 2, start.s.full[1]);
  }
  wait(start.s.full[1], 0);
}

__global__ void wrong_too_many_bytes(const int64_t* x, int64_t*) {
  const Start start;
  if (start()) {
    fill(start.s, 0, x);
    bulk_copy(start.s.data[1], x, kBytes, start.s.full[0]);
  }
  wait(start.s.full[0], 0);
}

__global__ void wrong_unannounced_bytes(const int64_t* x, int64_t*) {
  const Start start;
  if (start()) {
    bulk_copy(start.s.data[0], x, kBytes, start.s.full[0]);
    arrive(start.s.full[0]);
  }
  wait(start.s.full[0], 0);
}

__global__ void wrong_source(const int64_t* x, int64_t*) {
  const Start start;
  if (start()) fill(start.s, 0, x + 1);
}

__global__ void wrong_target(const int64_t* x, int64_t*) {
  const Start start;
  if (start()) bulk_copy(&start.s.data[0][1], x, 16, start.s.full[0]);
}

__global__ void wrong_size(const int64_t* x, int64_t*) {
  const Start start;
  if (start()) bulk_copy(start.s.data[0], x, 24, start.s.full[0]);
}

__global__ void wrong_room(const int64_t* x, int64_t*) {
  const Start start;
  if (start()) bulk_copy(start.s.data[2], x, 2 * kBytes, start.s.full[0]);
}

__global__ void wrong_direction(const int64_t* x, int64_t* y) {
  const Start start;
  if (start()) bulk_copy(y, x, kBytes, start.s.full[0]);
}

__global__ void wrong_no_init(const int64_t*, int64_t*) { wait(shared<Ring>().full[0], 0); }

__global__ void wrong_init_not_awaited(const int64_t*, int64_t*) {
  Ring& s = shared<Ring>();
  if (threadIdx.x == 0) init(s.full[0], blockDim.x), publish_barriers();
  arrive(s.full[0]);
  wait(s.full[0], 0);
}

__global__ void wrong_init_of_none(const int64_t*, int64_t*) { init(shared<Ring>().full[0], 0); }

__global__ void wrong_init_in_local_memory(const int64_t*, int64_t*) {
  Barrier barrier;
  init(barrier, 1);
}

__global__ void wrong_unpublished(const int64_t* x, int64_t*) {
  Ring& s = shared<Ring>();
  if (threadIdx.x == 0) init(s.full[0], 1);
  __syncthreads();
  if (threadIdx.x == 0) fill(s, 0, x);
  wait(s.full[0], 0);
}

__global__ void wrong_number_of_arrivals(const int64_t* x, int64_t*) {
  const Start start;
  if (start()) {
    fill(start.s, 0, x);
    arrive(start.s.full[0]);
  }
  wait(start.s.full[0], 0);
}

__global__ void wrong_phase_number(const int64_t*, int64_t*) {
  const Start start;
  wait(start.s.full[0], 2);
}

__global__ void wrong_block(const int64_t*, int64_t*) {
  const Start start;
  cluster_sync();
  arrive(*in_block(&start.s.full[0], cluster_rank() ^ 1));
}

__global__ void wrong_exit(const int64_t* x, int64_t*) {
  const Start start;
  if (start()) fill(start.s, 0, x);
}

__global__ void wrong_exit_after_store(const int64_t*, int64_t* y) {
  const Start start;
  for (int i = threadIdx.x; i < kTile; i += blockDim.x) start.s.data[0][i] = i;
  fence_for_copies();
  __syncthreads();
  if (start()) bulk_store(y, start.s.data[0], kBytes), bulk_commit(), bulk_wait_read<1>();
}

__global__ void wrong_write_before_store(const int64_t*, int64_t* y) {
  const Start start;
  for (int k = 0; k < 2; ++k) {
    for (int i = threadIdx.x; i < kTile; i += blockDim.x) start.s.data[0][i] = i + k;
    fence_for_copies();
    __syncthreads();
    if (start()) bulk_store(y + k * kTile, start.s.data[0], kBytes), bulk_commit();
  }
  if (start()) bulk_wait_read<0>();
}

// Others have read it, too, and a barrier ends that; not what the copy reads.
__global__ void wrong_write_after_other_reads(const int64_t*, int64_t* y) {
  const Start start;
  for (int i = threadIdx.x; i < kTile; i += blockDim.x) start.s.data[0][i] = i;
  fence_for_copies();
  __syncthreads();
  if (start()) bulk_store(y, start.s.data[0], kBytes), bulk_commit();
  y[kTile + threadIdx.x] = start.s.data[0][threadIdx.x];
  __syncthreads();
  start.s.data[0][threadIdx.x] = 0;
  if (start()) bulk_wait_read<0>();
}

__global__ void wrong_unfenced_store(const int64_t*, int64_t* y) {
  const Start start;
  for (int i = threadIdx.x; i < kTile; i += blockDim.x) start.s.data[0][i] = i;
  __syncthreads();
  fence_for_copies();
  if (start()) bulk_store(y, start.s.data[0], kBytes), bulk_commit(), bulk_wait_read<0>();
}

__global__ void wrong_unfenced_copy(const int64_t* x, int64_t*) {
  const Start start;
  for (int i = threadIdx.x; i < kTile; i += blockDim.x) start.s.data[0][i] = i;
  __syncthreads();
  if (start()) fill(start.s, 0, x);
  wait(start.s.full[0], 0);
}

__global__ void wrong_read_of_a_store(const int64_t*, int64_t* y) {
  const Start start;
  for (int i = threadIdx.x; i < kTile; i += blockDim.x) start.s.data[0][i] = i;
  fence_for_copies();
  __syncthreads();
  if (start()) bulk_store(y, start.s.data[0], kBytes), bulk_commit(), bulk_wait_read<0>();
  __syncthreads();
  y[kTile + threadIdx.x] = y[threadIdx.x];
}
"""
NAMED = {  # what is said, and whether --race is needed for it
    "wrong_no_wait": (
        r"race: .*reads shared memory .* that a bulk copy of thread \(0,0,0\) of block \(0,0,0\) "
        r"wrote, without a wait\(\) for phase 0 of its barrier.*asked for ",
        True,
    ),
    "wrong_phase": (r"race: .* reads .* without a wait\(\) for phase 1 of its barrier", True),
    "wrong_refill": (
        r"race: .*(asks for a bulk copy to shared memory .* that thread .* read, with n|"
        r"reads shared memory .* bulk copy .* asked for before it was read)",
        True,
    ),
    "wrong_arrivals_of_one_warp": (
        r"race: .*asks for a bulk copy to shared .* that thread \(32,0,0\) .*with no barrier",
        True,
    ),
    "wrong_too_few_bytes": (
        r"deadlock: .*64 threads wait in wait\(\) for phase 0 of the barrier in shared memory "
        r"\(byte 3080 of \d+\), where 0 of 1 arrival is missing and 512 of 1024 announced bytes",
        False,
    ),
    "wrong_too_many_bytes": ("barrier: 2048 bytes are copied .* but 1024 were announced", False),
    "wrong_unannounced_bytes": ("barrier: 1024 bytes .* but 0 were announced", False),
    "wrong_source": ("misaligned: .*address in global memory is 8 bytes past", False),
    "wrong_target": ("misaligned: .*address in shared memory is 8 bytes past", False),
    "wrong_size": ("misaligned: .*of 24 bytes, which is no multiple of 16", False),
    "wrong_room": ("out-of-bounds: .*of 2048 bytes, more than .* shared memory .byte 2048", False),
    "wrong_direction": ("bad-address: .* not between global memory and the shared", False),
    "wrong_no_init": (r"uninitialised: .*, which nobody has made with init\(\)", False),
    "wrong_init_not_awaited": ("(race|uninitialised): .*uses the barrier in shared memory", True),
    "wrong_init_of_none": ("barrier: .*makes a barrier of 0 arrivals", False),
    "wrong_init_in_local_memory": ("barrier: .*not in the shared memory of its block", False),
    "wrong_unpublished": (r"missing-fence: .*without publish_barriers\(\) after it", False),
    "wrong_number_of_arrivals": ("barrier: .*whose phase has had all 1 arrival", False),
    "wrong_phase_number": ("barrier: .*waits for phase 2, not 0 or 1", False),
    "wrong_block": ("barrier: .*which only its own block can use", False),
    "wrong_exit": (r"in-flight: block \(0,0,0\) exits although nobody waited .* phase 0", False),
    "wrong_exit_after_store": (r"in-flight: thread \(0,0,0\).* without bulk_wait_read\(\)", False),
    "wrong_write_before_store": (r"race: .*writes .* read, without bulk_wait_read\(\)", True),
    "wrong_write_after_other_reads": ("race: .*writes shared memory .* read, with", True),
    "wrong_unfenced_store": (r"missing-fence: .* wrote, without fence_for_copies\(\)", True),
    "wrong_unfenced_copy": (r"missing-fence: .* wrote, without fence_for_copies\(\)", True),
    "wrong_read_of_a_store": ("race: .*which is seen in later kernels only", True),
}
KERNELS = RIGHT + WRONG + FINE
assert set(NAMED) == set(re.findall(r"__global__ void (wrong_\w+)\(", KERNELS))
READERS = ["ring", "warps_apart", "one_waits", "stores", "for_the_cluster"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_kernels(tmp_path_factory.mktemp("async"), "sim_async", KERNELS)


@pytest.fixture(scope="module", params=EACH_MACHINE)
def call(request: pytest.FixtureRequest, folder: Path) -> Call:
    return load_kernels(folder, request.param)


@pytest.fixture(scope="module")
def simulated(folder: Path) -> Call:
    return load_kernels(folder)


def tiles(count: int) -> list[int]:
    return [count, 0, *(i * i for i in range(128 * count))]


@WAYS
@pytest.mark.parametrize("kernel", READERS)
def test_right_kernels(call: Call, kernel: str, way: dict[str, Any]) -> None:
    x = tiles(14)
    shape = {"grid": (2 if kernel in ("ring", "warps_apart", "for_the_cluster") else 1,)}
    cluster = 2 if kernel == "for_the_cluster" else 1
    y = call(kernel, x, block=(96,), size=14 * 128, cluster=cluster, **shape, **way)
    rows = torch.tensor(x[2:]).reshape(14, 128)
    assert y == (rows + rows.flip(1)).flatten().tolist()


@pytest.mark.parametrize("seed", [None, 0, 1])
@pytest.mark.parametrize("kernel", NAMED)
def test_wrong_kernels_are_named(simulated: Call, kernel: str, seed: int | None) -> None:
    said, races = NAMED[kernel]
    grid = (2,) if kernel == "wrong_block" else (1,)
    for mode in ["race"] if races else ["race", "plain"]:
        with pytest.raises(SimulationError, match=f"(?s){said}"):
            simulated(
                kernel,
                tiles(4),
                grid=grid,
                cluster=grid[0],
                block=(64,),
                size=512,
                mode=mode,
                seed=seed,
            )
        works(simulated, mode=mode)


def test_what_is_read_too_early_is_poison(simulated: Call) -> None:
    assert simulated("wrong_no_wait", tiles(4), block=(64,), size=64) == [-1] * 64


def test_copies_count_as_traffic(folder: Path) -> None:
    names = re.findall(r"__global__ void (\w+)\(", (folder / "cuda.cu").read_text())
    function, x = opforge.load(folder), torch.tensor(tiles(14))
    for kernel in ("ring", "stores"):
        args = names.index(kernel), [1, 1, 1], [96, 1, 1], 0, 1, 14 * 128
        with sim.active("race", traffic=True) as calls:
            function(x, *args)
        launch = calls[-1].launches[-1]
        assert launch.distinct_read == pytest.approx(14 * 1024, abs=64)
        assert launch.distinct_written == pytest.approx(14 * 1024, abs=64)
        assert launch.bytes_written == 14 * 1024
        # Asked for once by copies, and by every thread for itself.
        assert (launch.bytes_read > 2 * 14 * 1024) is (kernel == "stores")
        assert launch.read_requests < 100 or kernel == "stores"
