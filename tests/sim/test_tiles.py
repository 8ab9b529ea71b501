# SPDX-License-Identifier: Apache-2.0
"""Tiles, products of warp groups and named barriers: right kernels pass, wrong ones are named."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import write_op
from sim_kernels import EACH_MACHINE

import opforge
from opforge import sim
from opforge.errors import SimulationError

pytestmark = pytest.mark.sim

OP_PY = """
import torch
from opforge import Build, Op

op = Op(
    schema="sim_tiles(Tensor a, Tensor b, int which, int threads, int cluster) -> Tensor y",
    reference=lambda a, b, which, threads, cluster: a @ b.mT,
    dtypes=(torch.float32, torch.float16, torch.bfloat16),
    build=Build(archs=["9.0a"]),
)
"""
INCLUDES = """\
#include <opforge/core/cluster.h>
#include <opforge/core/shared.h>
#include <opforge/core/tensor_map.h>
#include <opforge/core/warpgroup.h>
#include <opforge/core/wgmma.h>
#include <opforge/host.h>

using namespace opforge;
"""
RIGHT = r"""
constexpr int kBox = 64 * kTileWidth, kShared = 14 * kBox;

struct Maps {
  TensorMap a, b, y;  // y has room beyond the result
};

__device__ unsigned char* boxes() {
  unsigned char* const start = dynamic_shared();
  return start + (kTileAlignment - reinterpret_cast<uintptr_t>(start) % kTileAlignment);
}

struct Barriers {
  Barrier full[4], empty[4];
};

__device__ Barriers& make_barriers(int readers = 1) {
  Barriers& s = shared<Barriers>();
  if (threadIdx.x == 0) {
    for (int i = 0; i < 4; ++i) init(s.full[i], 1), init(s.empty[i], readers);
    publish_barriers();
  }
  cluster_sync();
  return s;
}

// Values of 64 rows to boxes beside each other.
template <class T, int N>
__device__ void put(const float (&sums)[N], unsigned char* to) {
  const int t = int(threadIdx.x) % kWarpGroup;
  for (int i = 0; i < N; ++i) {
    const int row = t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8;
    const int byte = (i / 4 * 8 + t % 4 * 2 + i % 2) * int(sizeof(T));
    *reinterpret_cast<T*>(to + byte / kTileWidth * kBox + swizzled(row, byte % kTileWidth)) =
        narrow<T>(sums[i]);
  }
}

// 64 x 128 of y by a warp group. With a box at -1 the first row and column are beyond the matrix.
template <class T, Major major_a, Major major_b>
__global__ void __launch_bounds__(128) one_tile(const __grid_constant__ Maps maps, int k) {
  constexpr int kInner = kTileWidth / int(sizeof(T)), kN = 128;
  Barriers& s = make_barriers();
  unsigned char *const a = boxes(), *const b = a + kBox, *const y = b + 2 * kBox;
  const int row = int(blockIdx.y) * 64, col = int(blockIdx.x) * kN, batch = int(blockIdx.z);
  float sums[kN / 2] = {};
  for (int stage = 0; stage * kInner < k; ++stage) {
    const int inner = stage * kInner;
    if (threadIdx.x == 0) {
      arrive_expecting(s.full[0], 3 * kBox);
      major_a == Major::inner ? tile_copy(a, maps.a, inner, row, batch, s.full[0])
                              : tile_copy(a, maps.a, row, inner, batch, s.full[0]);
      for (int i = 0; i < 2; ++i) {
        const int at = col + i * 64;
        major_b == Major::inner ? tile_copy(b + i * kBox, maps.b, inner, at, batch, s.full[0])
                                : tile_copy(b + i * kBox, maps.b, at, inner, batch, s.full[0]);
      }
    }
    wait(s.full[0], stage % 2);
    warpgroup_arrive();
    for (int step = 0; step < 4; ++step) {
      warpgroup_multiply<T, kN, major_a, major_b>(sums, tile_operand<major_a>(a, step, kBox),
                                                  tile_operand<major_b>(b, step, kBox),
                                                  stage + step > 0);
    }
    warpgroup_commit();
    warpgroup_wait<0>();
    keep_in_place(sums);
    __syncthreads();
  }
  put<T>(sums, y);
  fence_for_copies();
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int byte = 0; byte < kN * int(sizeof(T)); byte += kTileWidth)
    tile_store(maps.y, col + byte / int(sizeof(T)), row, batch, y + byte / kTileWidth * kBox);
  bulk_commit();
  bulk_wait_read<0>();
}

// A warp group fetches, two multiply. Both blocks of a cluster need the same 128 rows of a. Each
// fetches one half for both.
__global__ void __launch_bounds__(384) roles(const __grid_constant__ Maps maps, int k) {
  constexpr int kStages = 2, kInner = 64;
  const int stages = (k + kInner - 1) / kInner, tiles = 3, rank = cluster_rank();
  const int group = int(threadIdx.x) / kWarpGroup, col = rank * 64;
  Barriers& s = make_barriers(2 * 2);
  unsigned char* const ring = boxes();  // a (2 boxes) and b of each stage
  unsigned char* const slot = ring + kStages * 3 * kBox + group * kBox;
  if (group == 0) {
    give_registers<40>();
    for (int i = 0; threadIdx.x == 0 && i < tiles * stages; ++i) {
      const int inner = i % stages * kInner, row = i / stages * 128 + rank * 64, at = i % kStages;
      unsigned char* const to = ring + at * 3 * kBox;
      wait(s.empty[at], i / kStages % 2 ^ 1);
      arrive_expecting(s.full[at], 3 * kBox);
      tile_copy_to(3, to + rank * kBox, maps.a, inner, row, 0, s.full[at]);
      tile_copy(to + 2 * kBox, maps.b, inner, col, 0, s.full[at]);
    }
  } else {
    take_registers<232>();
    float sums[32] = {};
    for (int i = 0; i < tiles * stages; ++i) {
      const int at = i % kStages;
      unsigned char* const from = ring + at * 3 * kBox;
      wait(s.full[at], i / kStages % 2);
      warpgroup_arrive();
      for (int step = 0; step < 4; ++step) {
        warpgroup_multiply<bfloat16, 64>(
            sums, tile_operand<Major::inner>(from + (group - 1) * kBox, step),
            tile_operand<Major::inner>(from + 2 * kBox, step), i % stages + step > 0);
      }
      warpgroup_commit();
      warpgroup_wait<0>();
      keep_in_place(sums);
      if (threadIdx.x % kWarpGroup < 2) arrive_at(s.empty[at], int(threadIdx.x) % kWarpGroup);
      if (i % stages != stages - 1) continue;
      if (threadIdx.x % kWarpGroup == 0) bulk_wait_read<0>();
      sync_some(group, kWarpGroup);
      put<bfloat16>(sums, slot);
      fence_for_copies();
      sync_some(group, kWarpGroup);
      if (threadIdx.x % kWarpGroup != 0) continue;
      tile_store(maps.y, col, i / stages * 128 + (group - 1) * 64, 0, slot);
      bulk_commit();
    }
    if (threadIdx.x % kWarpGroup == 0) bulk_wait_read<0>();
  }
  __syncwarp();
  cluster_sync();
}

struct Word {
  int value;
};

// Two warp groups in turns: the first thread of each writes only when it has the word.
__global__ void __launch_bounds__(256) turns(const __grid_constant__ Maps maps, int) {
  Word& s = shared<Word>();
  const int group = int(threadIdx.x) / kWarpGroup;
  unsigned char* const box = boxes();
  auto* const values = reinterpret_cast<bfloat16*>(box);
  if (group == 1) arrive_some(1, 256);
  for (int i = 0; i < 4; ++i) {
    sync_some(1 + group, 256);
    const int last = i + group > 0 ? s.value : 0;
    sync_some(3 + group, 128);
    if (threadIdx.x % kWarpGroup == 0) s.value = last + 1;
    const int at = swizzled(2 * i + group, 2 * (int(threadIdx.x) % 64)) / 2;
    if (threadIdx.x % kWarpGroup < 64) values[at] = narrow<bfloat16>(float(last));
    if (group == 0 || i < 3) arrive_some(2 - group, 256);
  }
  for (int i = int(threadIdx.x); i < 56 * 64; i += 256) values[8 * 64 + i] = narrow<bfloat16>(0.0f);
  fence_for_copies();
  __syncthreads();
  if (threadIdx.x != 0) return;
  tile_store(maps.y, 0, 0, 0, box);
  bulk_commit();
  bulk_wait_read<0>();
}

// What lies around a matrix is zero: the box begins two rows and eight columns before it.
__global__ void __launch_bounds__(128) around(const __grid_constant__ Maps maps, int) {
  Barriers& s = make_barriers();
  unsigned char* const box = boxes();
  if (threadIdx.x == 0) {
    arrive_expecting(s.full[0], kBox);
    tile_copy(box, maps.a, -8, -2, 0, s.full[0]);
    wait(s.full[0], 0);
    tile_store(maps.y, 0, 0, 0, box);
    tile_store(maps.y, 64, 64, 0, box);
    bulk_commit();
    bulk_wait_read<0>();
  }
}
"""
HOST = r"""
template <class T>
static TensorMap map_of(const Tensor& x, bool& inner) {
  inner = x.stride(2) == 1;
  const int row = inner ? 1 : 2, col = inner ? 2 : 1;
  const MatrixExtent extent{x.size(row), x.size(col), x.stride(row), x.size(0), x.stride(0)};
  return tensor_map(data<T>(x), extent, inner ? 64 : kTileWidth / int(sizeof(T)),
                    std::is_same_v<T, float>);
}

static Tensor run(const Tensor& a, const Tensor& b, int64_t which, int64_t threads,
                  int64_t cluster) {
  const int64_t m = a.size(1), n = b.size(1), k = a.size(2), batches = a.size(0);
  const int64_t sizes[] = {batches, m + 8, n + 8};
  const Tensor y = empty(sizes, a);
  const DeviceGuard guard(a.get_device_index());
  fill_zero(y);
  const auto go = [&](auto kernel, const Maps& maps, dim3 grid) {
    Config config{grid, dim3(unsigned(threads)), current_stream(a), kShared};
    config.cluster = int(cluster);
    launch(kernel, config, maps, int(k));
  };
  dispatch_all(dtype_of(a), [&]<class T>(Type<T>) {
    if constexpr (!std::is_same_v<T, double>) {
      bool a_inner, b_inner;
      Maps maps{map_of<T>(a, a_inner), map_of<T>(b, b_inner), {}};
      const MatrixExtent extent{m, n, n + 8, batches, (m + 8) * (n + 8)};
      maps.y = tensor_map(mutable_data<T>(y), extent, 64);
      if (which > 0) return go(kernels[which - 1], maps, dim3(unsigned(cluster)));
      const dim3 grid(unsigned(n + 127) / 128, unsigned(m + 63) / 64, unsigned(batches));
      constexpr Major in = Major::inner, out = Major::outer;
      if (a_inner && b_inner) return go(one_tile<T, in, in>, maps, grid);
      if constexpr (sizeof(T) == 2) {
        if (a_inner) return go(one_tile<T, in, out>, maps, grid);
        if (b_inner) return go(one_tile<T, out, in>, maps, grid);
        return go(one_tile<T, out, out>, maps, grid);
      }
    }
  });
  return y;
}
OPFORGE_IMPL(sim_tiles, run)
"""
WRONG = r"""
__device__ void fetch(const Maps& maps, Barrier& full, unsigned char* to) {
  arrive_expecting(full, kBox);
  tile_copy(to, maps.a, 0, 0, 0, full);
}

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
ALONE = {"wrong_early_sums"}
# What is said, whether --race is needed for it, threads and blocks.
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
KERNELS = re.findall(r"^__global__ void (?:__launch_bounds__\(\d+\) )?(\w+)\(", RIGHT + WRONG, re.M)
KERNELS.remove("one_tile")
assert {k for k in KERNELS if k.startswith("wrong")} == NAMED.keys() | ALONE
TABLE = f"\nconstexpr void (*kernels[])(Maps, int) = {{{', '.join(KERNELS)}}};\n"
Run = Callable[..., torch.Tensor]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiles") / "sim_tiles"
    return write_op(folder, op_py=OP_PY, cpp=None, cu=INCLUDES + RIGHT + WRONG + TABLE + HOST)


def load(folder: Path, machine: str) -> Run:
    function = opforge.load(folder)

    def call(
        a: Any, b: Any, kernel: str = "", threads: int = 128, cluster: int = 1, **how: Any
    ) -> Any:
        args = KERNELS.index(kernel) + 1 if kernel else 0, threads, cluster
        if machine == "cuda":
            return function(a.cuda(), b.cuda(), *args).cpu()
        return sim.run(function, a, b, *args, **how)

    return call


@pytest.fixture(scope="module", params=EACH_MACHINE)
def call(request: pytest.FixtureRequest, folder: Path) -> Run:
    return load(folder, request.param)


@pytest.fixture(scope="module")
def simulated(folder: Path) -> Run:
    return load(folder, "sim")


def matrix(dtype: torch.dtype, *shape: int, outer: bool = False) -> torch.Tensor:
    """Random numbers amid NaN."""
    batches, rows, cols = (shape[0], shape[2], shape[1]) if outer else shape
    around = torch.full((batches, rows + 8, cols + 8), torch.nan, dtype=dtype)
    x = around[:, :rows, :cols]
    x.copy_(torch.randn(x.shape, generator=torch.Generator().manual_seed(rows)))
    return x.mT if outer else x


def to_tf32(x: torch.Tensor) -> torch.Tensor:
    bits = x.contiguous().view(torch.int32)
    return ((bits + 0xFFF + (bits >> 13 & 1)) & ~0x1FFF).view(torch.float32)  # ties to even


def check(y: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    exact = to_tf32 if a.dtype == torch.float32 else torch.Tensor.double
    truth = exact(a).double() @ exact(b).double().mT
    room = torch.zeros_like(y)
    room[:, : truth.shape[1], : truth.shape[2]] = truth.to(a.dtype)
    torch.testing.assert_close(y, room, rtol=2 * torch.finfo(a.dtype).eps, atol=1e-4)


RACE = pytest.mark.parametrize("way", [{}, {"mode": "race"}], ids=["plain", "race"])


@RACE
@pytest.mark.parametrize(
    ("dtype", "a_outer", "b_outer"),
    [
        (torch.bfloat16, False, False),
        (torch.float16, False, True),
        (torch.float16, True, False),
        (torch.bfloat16, True, True),
        (torch.float32, False, False),
    ],
)
def test_a_product_of_tiles(
    call: Run, dtype: torch.dtype, a_outer: bool, b_outer: bool, way: dict[str, Any]
) -> None:
    a = matrix(dtype, 2, 104, 88, outer=a_outer)
    b = matrix(dtype, 2, 72, 88, outer=b_outer)
    check(call(a, b, **way), a, b)


@pytest.mark.parametrize("way", [{}, {"seed": 1}, {"mode": "race"}, {"mode": "race", "seed": 2}])
def test_roles_and_multicast(call: Run, way: dict[str, Any]) -> None:
    a, b = matrix(torch.bfloat16, 1, 360, 200), matrix(torch.bfloat16, 1, 120, 200)
    check(call(a, b, "roles", 384, 2, **way), a, b)


@pytest.mark.parametrize("way", [{}, {"seed": 1}, {"mode": "race"}])
def test_turns(call: Run, way: dict[str, Any]) -> None:
    x = matrix(torch.bfloat16, 1, 64, 64)
    y = call(x, x, "turns", 256, **way)
    assert y[0, :64, 0].tolist() == [*range(8)] + [0] * 56


@RACE
def test_boxes_around_a_matrix(call: Run, way: dict[str, Any]) -> None:
    x = matrix(torch.bfloat16, 1, 72, 80)
    y = call(x, x, "around", **way)
    box = torch.zeros(64, 64, dtype=x.dtype)
    box[2:, 8:] = x[0, :62, :56]
    expected = torch.zeros_like(y)
    expected[0, :64, :64] = box
    expected[0, 64:72, 64:72] = box[:8, :8]
    assert torch.equal(y, expected)


def test_rounding_to_tf32(call: Run) -> None:
    a = matrix(torch.float32, 1, 64, 32)
    ulp = 2.0**-10
    a[0, :5, 0] = torch.tensor([1 + ulp / 2, -1 - 1.5 * ulp, 3.4e38, torch.inf, torch.nan])
    b = torch.eye(32)[None]
    y = call(a, b)[0, :64, :32]
    assert y[0, 0] == 1
    assert y[1, 0] == -1 - 2 * ulp
    assert torch.equal(y[5:], to_tf32(a[0, 5:]))
    assert y[3:5].isnan().any(1).all()  # inf * 0


@pytest.mark.parametrize("kernel", NAMED)
def test_wrong_kernels_are_named(simulated: Run, kernel: str) -> None:
    said, races, *shape = NAMED[kernel]
    threads, cluster = [*shape, *(128, 1)[len(shape) :]]
    x = matrix(torch.bfloat16, 1, 64, 64)
    for mode in ["race"] if races else ["race", "plain"]:
        with pytest.raises(SimulationError, match=f"(?s){said}"):
            simulated(x, x, kernel, threads, cluster, mode=mode)
    check(simulated(x, x, mode="race"), x, x)


def test_sums_are_nan_until_they_are_awaited(simulated: Run) -> None:
    x = matrix(torch.bfloat16, 1, 64, 64)
    assert simulated(x, x, "wrong_early_sums")[0, :64, :64].isnan().all()


def test_maps_that_the_driver_refuses(simulated: Run) -> None:
    x = matrix(torch.bfloat16, 1, 64, 64)
    odd = torch.zeros(1, 64, 65, dtype=x.dtype)
    for wrong, said in [
        (odd[:, :, 1:], "its address is 2 bytes past a multiple of 16"),
        (odd, "from a row to the next there are 130 bytes"),
        (x[:, :0], "extents are from 1"),
    ]:
        with pytest.raises(
            SimulationError, match=f"tensor-map: .* x .* elements of 2 bytes: {said}"
        ):
            simulated(wrong, x)


def test_tiles_count_as_traffic(folder: Path) -> None:
    function = opforge.load(folder)
    a, b = (matrix(torch.bfloat16, 1, 64, 64).contiguous() for _ in range(2))
    with sim.active("race", traffic=True) as calls:
        function(a, b, 0, 128, 1)
    launch = calls[-1].launches[-1]
    assert launch.distinct_read == launch.bytes_read == 2 * 64 * 128
    assert launch.bytes_written == 64 * 128
    # Nothing is asked of memory for a box that is all beyond the matrix.
    assert (launch.read_requests, launch.write_requests) == (2, 1)
