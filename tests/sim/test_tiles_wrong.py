# SPDX-License-Identifier: Apache-2.0
"""Tiles and named barriers: wrong kernels are named."""

from __future__ import annotations

import pytest
from sim_tiles import Run, check_is_named, kernels_of, load_tiles, write_tiles

pytestmark = pytest.mark.sim

KERNELS = r"""
__global__ void wrong_box(const __grid_constant__ Maps maps, int) {
  Barriers& s = make_barriers();
  if (threadIdx.x == 0) fetch(maps, s.full[0], boxes() + 128);
}

__global__ void wrong_base(const __grid_constant__ Maps maps, int) {
  Barriers& s = make_barriers();
  if (threadIdx.x == 0) fetch(maps, s.full[0], dynamic_shared());
}

__global__ void wrong_column(const __grid_constant__ Maps maps, int) {
  Barriers& s = make_barriers();
  if (threadIdx.x != 0) return;
  arrive_expecting(s.full[0], kBox);
  tile_copy(boxes(), maps.a, 3, 0, 0, s.full[0]);
}

__global__ void wrong_row(const __grid_constant__ Maps maps, int) {
  if (threadIdx.x == 0) tile_store(maps.y, 0, -2, 0, boxes()), bulk_commit(), bulk_wait_read<0>();
}

__global__ void wrong_room(const __grid_constant__ Maps maps, int) {
  Barriers& s = make_barriers();
  if (threadIdx.x == 0) fetch(maps, s.full[0], boxes() + kShared - kBox);
}

__global__ void wrong_unpublished(const __grid_constant__ Maps maps, int) {
  Barriers& s = shared<Barriers>();
  if (threadIdx.x == 0) {
    init(s.full[0], 1);
    fetch(maps, s.full[0], boxes());
    wait(s.full[0], 0);
  }
}

__global__ void wrong_exit(const __grid_constant__ Maps maps, int) {
  Barriers& s = make_barriers();
  if (threadIdx.x == 0) fetch(maps, s.full[0], boxes());
}

__global__ void wrong_no_wait(const __grid_constant__ Maps maps, int) {
  Barriers& s = make_barriers();
  if (threadIdx.x == 0) fetch(maps, s.full[0], boxes());
  __syncthreads();
  if (boxes()[threadIdx.x] == 1) __syncwarp();
  wait(s.full[0], 0);
}

__global__ void wrong_bytes(const __grid_constant__ Maps maps, int) {
  Barriers& s = make_barriers();
  if (threadIdx.x == 0) {
    arrive_expecting(s.full[0], kBox + 128);  // a box has all its bytes, wherever it is
    tile_copy(boxes(), maps.a, 0, 60, 0, s.full[0]);
  }
  wait(s.full[0], 0);
}

__global__ void wrong_unfenced_store(const __grid_constant__ Maps maps, int) {
  float sums[32] = {};
  put<bfloat16>(sums, boxes());
  __syncthreads();
  if (threadIdx.x == 0) tile_store(maps.y, 0, 0, 0, boxes()), bulk_commit(), bulk_wait_read<0>();
}

__global__ void wrong_exit_after_store(const __grid_constant__ Maps maps, int) {
  float sums[32] = {};
  put<bfloat16>(sums, boxes());
  fence_for_copies();
  __syncthreads();
  if (threadIdx.x == 0) tile_store(maps.y, 0, 0, 0, boxes()), bulk_commit();
}

__global__ void wrong_rank(const __grid_constant__ Maps maps, int) {
  Barriers& s = make_barriers();
  if (threadIdx.x == 0) tile_copy_to(4, boxes(), maps.a, 0, 0, 0, s.full[0]);
}

__global__ void wrong_early_multicast(const __grid_constant__ Maps maps, int) {
  Barriers& s = shared<Barriers>();
  if (threadIdx.x == 0) init(s.full[0], 1), publish_barriers();
  __syncthreads();
  if (threadIdx.x == 0) tile_copy_to(3, boxes(), maps.a, 0, 0, 0, s.full[0]);
}

// One thread of each block tells that it has read, for all.
__global__ void wrong_multicast_over_reads(const __grid_constant__ Maps maps, int) {
  Barriers& s = make_barriers(2);
  unsigned char* const box = boxes();
  for (int i = 0; i < 2; ++i) {
    if (threadIdx.x == 0) arrive_expecting(s.full[0], kBox);
    if (threadIdx.x == 0 && cluster_rank() == 0) {
      wait(s.empty[0], i ^ 1);
      tile_copy_to(3, box, maps.a, 0, 0, 0, s.full[0]);
    }
    wait(s.full[0], i);
    if (cluster_rank() == 1 && box[threadIdx.x] == 1) __syncwarp();
    if (threadIdx.x == 0) arrive_at(s.empty[0], 0);
  }
  cluster_sync();
}

__global__ void wrong_last_arrival(const __grid_constant__ Maps, int) {
  Barriers& s = make_barriers();
  if (threadIdx.x == 0) arrive_at(s.empty[0], cluster_rank() ^ 1);
}

__global__ void wrong_arrival_before_start(const __grid_constant__ Maps, int) {
  Barriers& s = shared<Barriers>();
  if (threadIdx.x == 0) init(s.empty[0], 1), publish_barriers();
  __syncthreads();
  if (threadIdx.x == 0) arrive_at(s.empty[0], cluster_rank() ^ 1);
}

// Who waits may write where the others have read, but not read what they have written.
__global__ void wrong_news_by_arrival(const __grid_constant__ Maps, int) {
  Barriers& s = make_barriers();
  unsigned char* const there = in_block(boxes(), cluster_rank() ^ 1);
  if (threadIdx.x == 0) *there = 1, arrive_at(s.empty[0], cluster_rank() ^ 1);
  wait(s.empty[0], 0);
  if (*boxes() == 2) __syncwarp();
  cluster_sync();
}

__global__ void wrong_id(const __grid_constant__ Maps, int) { sync_some(16, 128); }

__global__ void wrong_count(const __grid_constant__ Maps, int) { sync_some(1, 100); }

__global__ void wrong_counts(const __grid_constant__ Maps, int) {
  sync_some(1, threadIdx.x < 64 ? 128 : 64);
}

__global__ void wrong_second_time(const __grid_constant__ Maps, int) {
  arrive_some(2, 128);
  if (threadIdx.x == 0) arrive_some(2, 128);
}

__global__ void wrong_few(const __grid_constant__ Maps, int) {
  if (threadIdx.x < 96) sync_some(3, 128);
}

__global__ void wrong_word(const __grid_constant__ Maps, int) {
  Word& s = shared<Word>();
  if (threadIdx.x == 0) s.value = 1;
  if (threadIdx.x < 64) sync_some(1, 64);  // of the writer, not of all readers
  if (s.value == 2) __syncwarp();
}
"""
# What is said, whether the mode "race" is needed for it, threads and blocks.
NAMED = {
    "wrong_box": ("misaligned: .*shared memory is 128 bytes past a multiple of 1024", False),
    "wrong_base": ("misaligned: .*shared memory is 128 bytes past a multiple of 1024", False),
    "wrong_column": (
        "tile-place: .*column 3, row 0; columns begin at multiples of 16 bytes",
        False,
    ),
    "wrong_row": ("tile-place: .*column 0, row -2; what is stored begins in the matrix", False),
    "wrong_room": ("out-of-bounds: .*of 8192 bytes, more than there are from shared", False),
    "wrong_unpublished": (r"missing-fence: .*without publish_barriers\(\) after it", False),
    "wrong_exit": ("in-flight: .*exits although nobody waited for what is copied", False),
    "wrong_no_wait": (r"race: .* reads .* bulk copy .*without a wait\(\) for phase 0", True),
    "wrong_bytes": ("deadlock: .*8192 of 8320 announced bytes have come", False),
    "wrong_unfenced_store": (r"missing-fence: .* without fence_for_copies\(\) after it", True),
    "wrong_exit_after_store": (r"in-flight: .* without bulk_wait_read\(\)", False),
    "wrong_rank": ("cluster: .*rank 2 in a cluster of 2 blocks", False, 128, 2),
    "wrong_early_multicast": ("not-running: .*may not have started", False, 128, 2),
    "wrong_multicast_over_reads": (
        r"race: .*asks for a bulk copy to shared .*block \(1,0,0\)\) that thread .* read, with",
        True,
        128,
        2,
    ),
    "wrong_last_arrival": (
        r"not-running: .*(arrives at a barrier of block .*no cluster_sync\(\) comes after|"
        r"which has exited)",
        False,
        128,
        2,
    ),
    "wrong_arrival_before_start": ("not-running: .*may not have started", False, 128, 2),
    "wrong_news_by_arrival": (r"race: .*reads .* wrote, with no cluster_sync\(\)", True, 128, 2),
    "wrong_id": ("barrier: .*uses barrier 16 of its block; ids are 1 to 15", False),
    "wrong_count": ("barrier: .*barrier 1 .*for 100 threads; a multiple of 32", False),
    "wrong_counts": ("barrier: .*barrier 1 for (64|128) threads, but thread .* for", False),
    "wrong_second_time": (
        "barrier: .*barrier 2 again, before all 128 threads",
        False,
    ),
    "wrong_few": ("deadlock: .*96 threads wait at barrier 3, where 96 of 128 threads have", False),
    "wrong_word": ("race: .*thread .* reads .* wrote, with", True),
}
assert kernels_of(KERNELS) == list(NAMED)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = write_tiles(tmp_path_factory.mktemp("tiles") / "sim_wrong_tiles", KERNELS)
    return load_tiles(folder, KERNELS, "sim")


@pytest.mark.parametrize("kernel", NAMED)
def test_wrong_kernels_are_named(simulated: Run, kernel: str) -> None:
    check_is_named(simulated, kernel, *NAMED[kernel])
