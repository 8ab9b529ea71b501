# SPDX-License-Identifier: Apache-2.0
"""Products of warp groups: wrong kernels are named."""

from __future__ import annotations

import pytest
import torch
from sim_tiles import Run, check_is_named, kernels_of, load_tiles, matrix, write_tiles

pytestmark = pytest.mark.sim

KERNELS = r"""
__device__ void multiply(float (&sums)[32], const void* a, const void* b) {
  warpgroup_arrive();
  warpgroup_multiply<bfloat16, 64>(sums, tile_operand<Major::inner>(a, 0),
                                   tile_operand<Major::inner>(b, 0), false);
  warpgroup_commit();
}

// Zeros in two boxes, for everybody.
__device__ unsigned char* zeros() {
  unsigned char* const to = boxes();
  for (int i = int(threadIdx.x); i < 2 * kBox; i += int(blockDim.x)) to[i] = 0;
  fence_for_copies();
  __syncthreads();
  return to;
}

__global__ void wrong_threads(const __grid_constant__ Maps, int) {
  float sums[32];
  if (threadIdx.x >= 128) multiply(sums, boxes(), boxes()), warpgroup_wait<0>();
}

__global__ void wrong_some_threads(const __grid_constant__ Maps, int) {
  float sums[32];
  unsigned char* const box = zeros();
  if (threadIdx.x < 127) multiply(sums, box, box), warpgroup_wait<0>();
}

__global__ void wrong_no_arrive(const __grid_constant__ Maps, int) {
  float sums[32];
  const TileOperand x = tile_operand<Major::inner>(zeros(), 0);
  warpgroup_multiply<bfloat16, 64>(sums, x, x, false);
}

__global__ void wrong_other_product(const __grid_constant__ Maps, int) {
  float sums[32];
  unsigned char* const box = zeros();
  multiply(sums, box + threadIdx.x / 64 * kBox, box);
}

__global__ void wrong_operand(const __grid_constant__ Maps, int) {
  float sums[32];
  multiply(sums, boxes(), boxes() + 512);
}

__global__ void wrong_operand_room(const __grid_constant__ Maps, int) {
  float sums[32];
  multiply(sums, boxes() + kShared - kBox, boxes());
}

__global__ void wrong_operand_place(const __grid_constant__ Maps, int) {
  float sums[32];
  alignas(1024) unsigned char box[kBox];
  multiply(sums, box, boxes());
}

__global__ void wrong_exit_after_product(const __grid_constant__ Maps, int) {
  float sums[32];
  unsigned char* const box = zeros();
  multiply(sums, box, box);
  warpgroup_wait<1>();
}

__global__ void wrong_refill(const __grid_constant__ Maps maps, int) {
  Barriers& s = make_barriers();
  float sums[32];
  unsigned char* const box = zeros();
  multiply(sums, box, box + kBox);
  __syncthreads();
  if (threadIdx.x == 0) fetch(maps, s.full[0], box);
  warpgroup_wait<0>();
  wait(s.full[0], 0);
}

// Another warp group's products are not over.
__global__ void wrong_refill_of_both(const __grid_constant__ Maps maps, int) {
  Barriers& s = make_barriers();
  float sums[32];
  unsigned char* const box = zeros();
  multiply(sums, box, box);
  if (threadIdx.x < 128) {
    warpgroup_wait<0>();
    if (threadIdx.x == 0) fetch(maps, s.full[0], box);
  } else {
    warpgroup_wait<0>();
  }
  wait(s.full[0], 0);
}

__global__ void wrong_unfenced_product(const __grid_constant__ Maps, int) {
  float sums[32];
  unsigned char* const to = boxes();
  for (int i = int(threadIdx.x); i < kBox; i += int(blockDim.x)) to[i] = 0;
  __syncthreads();
  multiply(sums, to, to);
  warpgroup_wait<0>();
}

__global__ void wrong_one_warp_waits(const __grid_constant__ Maps maps, int) {
  Barriers& s = make_barriers();
  float sums[32];
  if (threadIdx.x == 0) fetch(maps, s.full[0], boxes());
  if (threadIdx.x < 32) wait(s.full[0], 0);
  multiply(sums, boxes(), boxes());
  warpgroup_wait<0>();
}

__global__ void wrong_unwritten_operand(const __grid_constant__ Maps, int) {
  float sums[32];
  multiply(sums, boxes(), boxes());
  warpgroup_wait<0>();
}

__global__ void wrong_early_sums(const __grid_constant__ Maps maps, int) {
  float sums[32] = {}, early[32];
  unsigned char* const box = zeros();
  multiply(sums, box, box);
  for (int i = 0; i < 32; ++i) early[i] = sums[i];
  warpgroup_wait<0>();
  put<bfloat16>(early, box + 2 * kBox);
  fence_for_copies();
  __syncthreads();
  if (threadIdx.x == 0) {
    tile_store(maps.y, 0, 0, 0, box + 2 * kBox), bulk_commit(), bulk_wait_read<0>();
  }
}
"""
# What is said, whether the mode "race" is needed for it, threads and blocks.
NAMED = {
    "wrong_threads": ("warp-group: .*of 128 threads, but its warp group has only 64", False, 192),
    "wrong_some_threads": (
        r"deadlock: .*127 threads wait in warpgroup_wait\(\) for a product that 127 of 128",
        False,
    ),
    "wrong_no_arrive": (r"warp-group: .*without warpgroup_arrive\(\) before it", False),
    "wrong_other_product": ("warp-group: .*another product than thread", False),
    "wrong_operand": ("misaligned: .*operand b, whose box is 512 bytes past", False),
    "wrong_operand_room": ("out-of-bounds: .*operand a, which is larger than", False),
    "wrong_operand_place": ("bad-address: .*operand a, which is not in the shared", False),
    "wrong_exit_after_product": (r"in-flight: .*without warpgroup_wait\(\)", False),
    "wrong_refill": (
        r"race: .*bulk copy to .* that a product of thread .* read, without warpgroup_wait\(\)",
        True,
    ),
    "wrong_refill_of_both": ("race: .*asks for a bulk copy to .* read, with", True, 256),
    "wrong_unfenced_product": (
        r"missing-fence: .*multiplies what is in .* wrote, without fence_for_copies\(\)",
        True,
    ),
    "wrong_one_warp_waits": (
        r"race: thread \((3[2-9]|[4-9]\d|1\d\d),0,0\).* multiplies what is in .* a bulk copy",
        True,
    ),
    "wrong_unwritten_operand": ("uninitialised: .*multiplies|uninitialised: .*nothing", True),
}
ALONE = ["wrong_early_sums"]
assert kernels_of(KERNELS) == [*NAMED, *ALONE]


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = write_tiles(tmp_path_factory.mktemp("tiles") / "sim_wrong_products", KERNELS)
    return load_tiles(folder, KERNELS, "sim")


@pytest.mark.parametrize("kernel", NAMED)
def test_wrong_kernels_are_named(simulated: Run, kernel: str) -> None:
    check_is_named(simulated, kernel, *NAMED[kernel])


def test_sums_are_nan_until_they_are_awaited(simulated: Run) -> None:
    x = matrix(torch.bfloat16, 1, 64, 64)
    assert simulated(x, x, "wrong_early_sums")[0, :64, :64].isnan().all()
