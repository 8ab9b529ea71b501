# SPDX-License-Identifier: Apache-2.0
"""Clusters: their barrier, each other's shared memory, and what may be launched."""

from __future__ import annotations

import re
from typing import Any

import pytest
from sim_kernels import EACH_MACHINE, FINE, WAYS, Call, load_kernels, works, write_kernels

from opforge import sim
from opforge.errors import SimulationError

pytestmark = pytest.mark.sim

KERNELS = (
    r"""
using opforge::cluster_arrive, opforge::cluster_arrive_relaxed, opforge::cluster_rank;
using opforge::cluster_size, opforge::cluster_sync, opforge::cluster_wait, opforge::in_block;

struct Part {
  int64_t value[64];
};

// --- right ---------------------------------------------------------------------------------------

__global__ void ranks(const int64_t*, int64_t* y) {
  const int block = blockIdx.x + gridDim.x * blockIdx.y;
  if (threadIdx.x == 0) y[block] = 10 * cluster_size() + cluster_rank();
}

// Every block gets the sum over its cluster, from shared memory of the others.
__global__ void cluster_sum(const int64_t* x, int64_t* y) {
  Part& part = opforge::shared<Part>();
  const int i = threadIdx.x, n = blockDim.x;
  for (int round = 0; round < 3; ++round) {
    part.value[i] = x[blockIdx.x * n + i] + round;
    cluster_sync();
    int64_t sum = 0;
    for (int rank = 0; rank < cluster_size(); ++rank) sum += *in_block(&part.value[i], rank);
    cluster_sync();  // before it is written again, or gone
    y[blockIdx.x * n + i] = sum;
  }
}

// Each block writes into its neighbour; between arriving and waiting it does what concerns no one.
__global__ void push(const int64_t* x, int64_t* y) {
  Part& part = opforge::shared<Part>();
  const int i = threadIdx.x, n = blockDim.x, next = (cluster_rank() + 1) % cluster_size();
  cluster_arrive();
  const int64_t own = x[blockIdx.x * n + i];
  cluster_wait();
  *in_block(&part.value[i], next) = own;
  if (cluster_rank() == 0) __syncthreads();  // their number may differ
  cluster_arrive();
  y[blockIdx.x * n + i] = own;
  __syncthreads();
  cluster_wait();
  y[blockIdx.x * n + i] += 100 * part.value[n - 1 - i];
}

// Through global memory, which a cluster's barrier orders, too.
__global__ void through_global(const int64_t* x, int64_t* y) {
  const int i = threadIdx.x, n = blockDim.x;
  const int first = blockIdx.x - cluster_rank();
  y[blockIdx.x * n + i] = x[blockIdx.x * n + i];
  cluster_sync();
  int64_t sum = 0;
  for (int rank = 0; rank < cluster_size(); ++rank) sum += y[(first + rank) * n + n - 1 - i];
  cluster_sync();
  y[blockIdx.x * n + i] = sum;
}

__global__ void dynamic(const int64_t* x, int64_t* y) {
  int64_t* value = reinterpret_cast<int64_t*>(opforge::dynamic_shared());
  const int i = threadIdx.x, last = 227 * 128 - 1;
  if (i == 0) value[last] = x[0] + int64_t(reinterpret_cast<uintptr_t>(value) % 128);
  __syncthreads();
  y[i] = value[last];
}

// --- wrong ---------------------------------------------------------------------------------------

__global__ void wrong_no_barrier(const int64_t* x, int64_t* y) {
  Part& part = opforge::shared<Part>();
  cluster_sync();
  part.value[threadIdx.x] = x[threadIdx.x];
  __syncthreads();  // of the block only
  y[0] = *in_block(&part.value[0], cluster_rank() ^ 1);
  cluster_sync();
}

__global__ void wrong_arrived_too_early(const int64_t* x, int64_t* y) {
  Part& part = opforge::shared<Part>();
  cluster_sync();
  cluster_arrive();
  part.value[threadIdx.x] = x[threadIdx.x];
  cluster_wait();
  y[blockIdx.x * blockDim.x + threadIdx.x] =
      *in_block(&part.value[threadIdx.x], cluster_rank() ^ 1);
  cluster_sync();
}

__global__ void wrong_written_before_read(const int64_t* x, int64_t* y) {
  Part& part = opforge::shared<Part>();
  for (int round = 0; round < 2; ++round) {
    part.value[threadIdx.x] = x[threadIdx.x];
    cluster_sync();
    y[blockIdx.x * blockDim.x + threadIdx.x] =
        *in_block(&part.value[threadIdx.x], cluster_rank() ^ 1);
  }
  cluster_sync();
}

__global__ void wrong_start(const int64_t* x, int64_t*) {
  Part& part = opforge::shared<Part>();
  *in_block(&part.value[threadIdx.x], cluster_rank() ^ 1) = x[threadIdx.x];
  cluster_sync();
}

__global__ void wrong_end(const int64_t* x, int64_t* y) {
  Part& part = opforge::shared<Part>();
  part.value[threadIdx.x] = x[threadIdx.x];
  cluster_sync();
  // Only the first block reads, which in the simulator's order happens to come early enough.
  if (cluster_rank() == 0) y[threadIdx.x] = *in_block(&part.value[threadIdx.x], 1);
}

__global__ void wrong_relaxed_arrival(const int64_t* x, int64_t* y) {
  Part& part = opforge::shared<Part>();
  part.value[threadIdx.x] = x[threadIdx.x];
  cluster_arrive_relaxed();
  cluster_wait();
  y[blockIdx.x * blockDim.x + threadIdx.x] =
      *in_block(&part.value[threadIdx.x], cluster_rank() ^ 1);
  cluster_sync();
}

__global__ void wrong_exited(const int64_t* x, int64_t* y) {
  Part& part = opforge::shared<Part>();
  part.value[threadIdx.x] = x[threadIdx.x];
  cluster_sync();
  if (cluster_rank() == 0) return;
  __syncthreads();
  y[threadIdx.x] = *in_block(&part.value[threadIdx.x], 0);
}

__global__ void wrong_rank(const int64_t*, int64_t*) {
  in_block(&opforge::shared<Part>(), cluster_rank() + 1);
}

__global__ void wrong_address(const int64_t* x, int64_t*) { in_block(x, 0); }

__global__ void wrong_arrivals(const int64_t*, int64_t*) {
  cluster_arrive();
  cluster_arrive();
}

__global__ void wrong_wait(const int64_t*, int64_t*) { cluster_wait(); }

__global__ void wrong_divergence(const int64_t*, int64_t*) {
  if (cluster_rank() == 0) cluster_sync();
  __syncthreads();
  if (cluster_rank() == 1 && threadIdx.x < 40) cluster_sync();
  __syncthreads();
}
"""
    + FINE
)

WRONG = {
    "wrong_no_barrier": r"race: thread .* in block \(\d,0,0\)\) that thread \(0,0,0\) of block "
    r"\(\d,0,0\) wrote, with no cluster_sync\(\) between",
    "wrong_arrived_too_early": "race: .* wrote, with no cluster_sync",
    "wrong_written_before_read": "race: .*writes shared memory .* read, with no cluster_sync",
    "wrong_start": r"not-running: .* may not have started: no cluster_sync\(\) comes before",
    "wrong_end": r"not-running: .* of block \(\d,0,0\) accesses shared memory of block "
    r"\(\d,0,0\), which may have exited: no cluster_sync\(\) comes after",
    "wrong_relaxed_arrival": "race: .* wrote, with no cluster_sync",
    "wrong_exited": r"not-running: .*which has exited",
    "wrong_rank": "cluster: .*rank 2 in a cluster of 2 blocks",
    "wrong_address": "cluster: .* not in its own shared memory",
    "wrong_arrivals": r"barrier: .*again, without cluster_wait\(\)",
    "wrong_wait": r"barrier: .*without cluster_arrive\(\)",
    "wrong_divergence": r"deadlock: no thread of the cluster of block \(0,0,0\) to \(1,0,0\) "
    r"can go on.* threads? waits? at the cluster's barrier",
}
assert set(WRONG) == set(re.findall(r"__global__ void (wrong_\w+)\(", KERNELS))
SEEN_WITHOUT_RACE = set(list(WRONG)[list(WRONG).index("wrong_exited") :])


@pytest.fixture(scope="module", params=EACH_MACHINE)
def call(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Call:
    folder = write_kernels(tmp_path_factory.mktemp("cluster"), "sim_cluster", KERNELS)
    return load_kernels(folder, request.param)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Call:
    folder = write_kernels(tmp_path_factory.mktemp("cluster"), "sim_cluster", KERNELS)
    return load_kernels(folder)


X = list(range(6 * 64))
EACH = [(b, i) for b in range(6) for i in range(64)]  # block and thread


def summed(cluster: int) -> list[int]:
    """For each of the six blocks of 64 threads, the sums over its cluster."""
    first = [b // cluster * cluster for b in range(6)]
    return [
        sum(X[(first[b] + r) * 64 + i] for r in range(cluster)) for b in range(6) for i in range(64)
    ]


@WAYS
def test_ranks(call: Call, way: dict[str, Any]) -> None:
    assert call("ranks", grid=(4, 2), cluster=2, size=8, **way) == [20, 21] * 4
    assert call("ranks", grid=(3,), size=3, **way) == [10] * 3


@WAYS
@pytest.mark.parametrize("cluster", [1, 2, 3, 6])
def test_sums_over_a_cluster(call: Call, cluster: int, way: dict[str, Any]) -> None:
    y = call("cluster_sum", X, grid=(6,), block=(64,), cluster=cluster, size=len(X), **way)
    assert y == [s + 2 * cluster for s in summed(cluster)]


@WAYS
def test_each_block_writes_into_the_next(call: Call, way: dict[str, Any]) -> None:
    y = call("push", X, grid=(6,), block=(64,), cluster=3, size=len(X), **way)
    before = [b // 3 * 3 + (b + 2) % 3 for b in range(6)]
    assert y == [
        X[b * 64 + i] + 100 * X[before[b] * 64 + 63 - i] for b in range(6) for i in range(64)
    ]


@WAYS
def test_global_memory_is_ordered_too(call: Call, way: dict[str, Any]) -> None:
    y = call("through_global", X, grid=(6,), block=(64,), cluster=3, size=len(X), **way)
    sums = summed(3)
    assert y == [sums[b * 64 + 63 - i] for b, i in EACH]


@WAYS
def test_dynamic_shared_memory(call: Call, way: dict[str, Any]) -> None:
    assert call("dynamic", [7], size=32, shared=227 * 1024, **way) == [7] * 32


@pytest.mark.parametrize("seed", [None, 0, 1])
@pytest.mark.parametrize("kernel", WRONG)
def test_wrong_kernels_are_named(simulated: Call, kernel: str, seed: int | None) -> None:
    for mode in ["race", "plain"] if kernel in SEEN_WITHOUT_RACE else ["race"]:
        with pytest.raises(SimulationError, match=f"(?s){WRONG[kernel]}"):
            simulated(kernel, X, grid=(2,), block=(64,), cluster=2, size=128, mode=mode, seed=seed)
        works(simulated, mode=mode)


def test_what_can_be_launched(call: Call) -> None:
    call("ranks", grid=(8,), cluster=8, size=8)
    for shape, name in (
        ({"grid": (16,), "cluster": 16}, "cudaErrorInvalidClusterSize"),
        ({"grid": (8,), "cluster": 0}, "cudaErrorInvalidClusterSize"),
        ({"grid": (9,), "cluster": 2}, "cudaErrorInvalidValue"),
        ({"grid": (2,), "shared": 227 * 1024 + 1}, "cudaErrorInvalidValue"),
    ):
        with pytest.raises(RuntimeError, match=name) as failure:
            call("ranks", size=16, **shape)
        assert not isinstance(failure.value, SimulationError)


def test_another_device_has_other_limits(simulated: Call) -> None:
    with pytest.raises(RuntimeError, match="clusters of 4 blocks: cudaErrorInvalidClusterSize"):
        simulated("ranks", grid=(4,), cluster=4, size=4, device=sim.Device(blocks_per_cluster=2))
