# SPDX-License-Identifier: Apache-2.0
"""Threads and blocks of simulated kernels do what CUDA's documentation says."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from sim_kernels import EACH_MACHINE, WAYS, Call, load_kernels, rows, write_kernels

pytestmark = pytest.mark.sim

KERNELS = r"""
// --- where a thread is ---------------------------------------------------------------------------

__global__ void __launch_bounds__(1024) coordinates(const int64_t*, int64_t* y) {
  const int64_t volume = blockDim.x * blockDim.y * blockDim.z;
  const int64_t thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const int64_t block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  int64_t* row = y + 12 * (block * volume + thread);
  const int64_t all[12] = {threadIdx.x, threadIdx.y, threadIdx.z, blockIdx.x, blockIdx.y,
                           blockIdx.z,  blockDim.x,  blockDim.y,  blockDim.z, gridDim.x,
                           gridDim.y,   gridDim.z};
  for (int k = 0; k < 12; ++k) row[k] += all[k];
}

__global__ void first_lane(const int64_t*, int64_t* y) {
  const int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  y[thread] = __shfl_sync(0xffffffffu, thread, 0);
}

// --- a block -------------------------------------------------------------------------------------

struct Tile {
  int64_t value[1024];
};

// Turns a block's values round, then shifts them by one, then turns them round again.
__global__ void __launch_bounds__(1024) turn(const int64_t* x, int64_t* y) {
  Tile& tile = opforge::shared<Tile>();
  const int i = threadIdx.x, n = blockDim.x;
  tile.value[i] = x[blockIdx.x * n + i];
  __syncthreads();
  int64_t mine = tile.value[n - 1 - i];
  __syncthreads();
  tile.value[(i + 1) % n] = mine;
  __syncthreads();
  mine = tile.value[i];
  __syncthreads();
  tile.value[n - 1 - i] = mine;
  __syncthreads();
  y[blockIdx.x * n + i] = tile.value[i];
}

__global__ void block_votes(const int64_t* x, int64_t* y) {
  const int predicate = int(x[threadIdx.x]);
  y[3 * threadIdx.x] = __syncthreads_and(predicate) != 0;
  y[3 * threadIdx.x + 1] = __syncthreads_or(predicate) != 0;
  y[3 * threadIdx.x + 2] = __syncthreads_count(predicate);
}

struct Numbers {
  int value[256];
};
struct Wide {
  double value[256];
  char odd[3];
};
struct Others {
  int value[256];
};

__global__ void shared_structs(const int64_t*, int64_t* y) {
  Numbers& a = opforge::shared<Numbers>();
  Wide& b = opforge::shared<Wide>();
  Others& c = opforge::shared<Others>();
  const int i = threadIdx.x;
  a.value[i] = i;
  b.value[i] = i + 0.5;
  c.value[i] = -i;
  if (i < 3) b.odd[i] = char('a' + i);
  __syncthreads();
  const int j = 255 - i;
  const bool same = &opforge::shared<Numbers>() == &a;
  y[blockIdx.x * 256 + i] =
         same && a.value[j] == j && b.value[j] == j + 0.5 && c.value[j] == -j &&
         b.odd[i % 3] == char('a' + i % 3);
}
"""


@pytest.fixture(scope="module", params=EACH_MACHINE)
def call(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Call:
    folder = write_kernels(tmp_path_factory.mktemp("sim"), "sim_language", KERNELS)
    return load_kernels(folder, request.param)


# --- where a thread is ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("grid", "block"),
    [
        ((5, 1, 1), (37, 1, 1)),
        ((3, 2, 1), (5, 7, 1)),
        ((2, 3, 4), (3, 4, 5)),
        ((1, 1, 3), (1, 1, 64)),
        ((2, 1, 1), (1, 1024, 1)),
    ],
)
@pytest.mark.parametrize("seed", [None, 3])
def test_coordinates(
    call: Call, grid: tuple[int, ...], block: tuple[int, ...], seed: int | None
) -> None:
    def places(shape: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
        for z, y, x in itertools.product(*map(range, reversed(shape))):
            yield x, y, z

    expected = [[*t, *b, *block, *grid] for b in places(grid) for t in places(block)]
    found = call("coordinates", grid=grid, block=block, size=12 * len(expected), seed=seed)
    assert rows(found, 12) == expected


def test_lanes_are_counted_along_x_then_y_then_z(call: Call) -> None:
    expected = [i // 32 * 32 for i in range(96)]
    assert call("first_lane", block=(4, 6, 4), size=96) == expected
    assert call("first_lane", block=(1, 3, 32), size=96) == expected


# --- a block --------------------------------------------------------------------------------------


@WAYS
@pytest.mark.parametrize("threads", [1, 31, 100, 1024])
def test_syncthreads(call: Call, threads: int, way: dict[str, object]) -> None:
    x = [i * i for i in range(3 * threads)]
    found = call("turn", x, grid=(3,), block=(threads,), size=len(x), **way)
    # Turned round, one up, turned round: one down.
    blocks = rows(x, threads)
    assert rows(found, threads) == [[*b[1:], b[0]] for b in blocks]


@WAYS
@pytest.mark.parametrize(
    "predicates",
    [[0] * 70, [1] * 70, [2, -1] * 35, [0] * 69 + [5], [1] * 33 + [0] + [7] * 36],
    ids=["none", "all", "not-one", "last", "but-one"],
)
def test_syncthreads_with_a_vote(call: Call, predicates: list[int], way: dict[str, object]) -> None:
    found = call("block_votes", predicates, block=(70,), size=210, **way)
    yes = sum(p != 0 for p in predicates)
    assert rows(found, 3) == [[int(yes == 70), int(yes > 0), yes]] * 70


@WAYS
def test_shared_structs_do_not_overlap(call: Call, way: dict[str, object]) -> None:
    assert call("shared_structs", grid=(2,), block=(256,), size=512, **way) == [1] * 512
