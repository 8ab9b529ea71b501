// SPDX-License-Identifier: Apache-2.0
// How the warp groups that multiply get the sums of a tile from its stages: see
// families/product/hopper.cuh. Includes no torch header.
#pragma once

#include <opforge/core/async.h>
#include <opforge/core/cluster.h>
#include <opforge/core/tensor_map.h>
#include <opforge/core/warpgroup.h>
#include <opforge/core/wgmma.h>
#include <opforge/families/product/call.h>

#include <opforge/families/product/hopper_layout.cuh>

namespace opforge {

template <class Layout>
struct HopperMultiply : Layout {
  using Layout::kMajorA, Layout::kMajorB, Layout::kGroups, Layout::kInner, Layout::kRowBlocks;
  using Layout::sync_group, Layout::kOrder;
  using typename Layout::T, typename Layout::Tile, typename Layout::Barriers,
      typename Layout::Shared, typename Layout::Position, typename Layout::Sums;

  // Frees a stage, here and where else its tiles come from.
  __device__ static void release(Barrier& empty) {
    constexpr int kSharers = Tile::kClusterM * Tile::kClusterN;
    if constexpr (kSharers > 1) {
      if (threadIdx.x % 32 < kSharers) arrive_at(empty, int(threadIdx.x % 32));
    } else {
      if (threadIdx.x % 32 == 0) arrive(empty);
    }
  }

  // Makes zeros of what an operand's stage has outside the inner indices `begin` to `end`.
  template <Major major, int Size>
  __device__ static void clear(unsigned char* stage, int begin, int end, int thread, int threads) {
    if constexpr (major == Major::outer) {
      constexpr int kPieces = kTileWidth / 16;
#pragma unroll 1
      for (int box = 0; box < Size / 64; ++box) {
#pragma unroll 1
        for (int i = thread; i < kInner * kPieces; i += threads) {
          const int inner = i / kPieces;
          if (inner >= begin && inner < end) continue;
          reinterpret_cast<int4*>(stage + box * kInner * kTileWidth)[i] = {};
        }
      }
    } else {
#pragma unroll 1
      for (int i = thread; i < Size * kInner; i += threads) {
        const int inner = i % kInner;
        if (inner >= begin && inner < end) continue;
        *reinterpret_cast<T*>(stage + swizzled(i / kInner, inner * int(sizeof(T)))) = T{};
      }
    }
  }

  // The last stage of a group reaches into the next one, and its first one may begin in the one
  // before. Their values must not count: 0 times NaN would. All who read the stage call it.
  __device__ static void cut(const Shared& s, int consumer, int stage, int begin, int end) {
    if (begin <= 0 && end >= kInner) return;
    constexpr int kThreads = Tile::kPingPong ? kWarpGroup : Tile::kConsumers * kWarpGroup;
    const int thread =
        int(threadIdx.x) % kWarpGroup + (Tile::kPingPong ? 0 : consumer) * kWarpGroup;
    clear<kMajorA, Tile::kM>(s.a(stage), begin, end, thread, kThreads);
    clear<kMajorB, Tile::kN>(s.b(stage), begin, end, thread, kThreads);
    fence_for_copies();  // products read as copies do
    kThreads == kWarpGroup ? sync_group(consumer) : sync_some(kOrder, kThreads);
  }

  __device__ static void clear(Sums& sums) {
#pragma unroll
    for (int r = 0; r < kRowBlocks; ++r) {
#pragma unroll
      for (int i = 0; i < Tile::kN / 2; ++i) sums[r][i] = 0.0f;
    }
  }

  // The product of a tile. `at` moves on by the stages it takes, which `work` knows. begun() is
  // called while the tensor cores make the first one.
  template <class Work, class Begun>
  __device__ static void multiply(const Shared& s, const Work& work, int consumer, Position& at,
                                  Sums& sums, const Begun& begun) {
    const int count = work.inner_count;
    Barriers& barriers = s.barriers();
    const int first_row = Tile::kPingPong ? 0 : consumer * Tile::kRows;
    if (count == 0) {
      clear(sums);
      begun();
      return;
    }
    int before = 0;
    for (int i = 0; i < count; ++i) {
      wait(barriers.full[at.stage], at.phase);
      if constexpr (kGroups == Groups::inner) {
        cut(s, consumer, at.stage, work.first_valid(i), work.last_valid(i));
      }
      warpgroup_arrive();
#pragma unroll
      for (int step = 0; step < kTileWidth / kMultiplyBytes; ++step) {
        const TileOperand b = tile_operand<kMajorB>(s.b(at.stage), step, kInner * kTileWidth);
#pragma unroll
        for (int r = 0; r < kRowBlocks; ++r) {
          const unsigned char* const box = s.a(at.stage) + (first_row + 64 * r) * kTileWidth;
          warpgroup_multiply<T, Tile::kN, kMajorA, kMajorB>(
              sums[r], tile_operand<kMajorA>(box, step, kInner * kTileWidth), b, i > 0 || step > 0);
        }
      }
      warpgroup_commit();
      if (i == 0) {
        begun();
      } else {
        warpgroup_wait<1>();
        release(barriers.empty[before]);
      }
      before = at.stage;
      at.advance();
    }
    warpgroup_wait<0>();
#pragma unroll
    for (int r = 0; r < kRowBlocks; ++r) keep_in_place(sums[r]);
    release(barriers.empty[before]);
  }

  // The same, where the tensor cores sum over one stage at a time, and the stages are added here.
  __device__ static void multiply_in_parts(const Shared& s, int consumer, int count, Position& at,
                                           Sums& sums) {
    clear(sums);
    if constexpr (kRowBlocks > 1) {
      // While a warp group adds, another one multiplies.
#pragma unroll 1
      for (; count > 0; --count) {
        wait(s.barriers().full[at.stage], at.phase);
#pragma unroll
        for (int r = 0; r < kRowBlocks; ++r) {
          Part part;
          begin_part(s, consumer, at.stage, r, part);
          warpgroup_wait<0>();
          keep_in_place(part);
          if (r == kRowBlocks - 1) release(s.barriers().empty[at.stage]);
          add_part(part, sums[r]);
        }
        at.advance();
      }
    } else if (count > 0) {
      // There are registers for two parts: one is added while the tensor cores make the other.
      Part one, two;
      const auto begin = [&](Part& part) {
        wait(s.barriers().full[at.stage], at.phase);
        begin_part(s, consumer, at.stage, 0, part);
      };
      const auto add = [&](Part& part, int stage) {
        keep_in_place(part);
        release(s.barriers().empty[stage]);
        add_part(part, sums[0]);
      };
      const auto next = [&](Part& part, Part& before) {
        const int stage = at.stage;
        at.advance();
        begin(part);
        warpgroup_wait<1>();
        add(before, stage);
      };
      const auto last = [&](Part& part) {
        warpgroup_wait<0>();
        add(part, at.stage);
        at.advance();
      };
      begin(one);
      while (true) {
        if (--count == 0) return last(one);
        next(two, one);
        if (--count == 0) return last(two);
        next(one, two);
      }
    }
  }

  using Part = float[Tile::kN / 2];  // of the sums: those of 64 rows

  // Asks for the product of 64 rows of a stage.
  __device__ static void begin_part(const Shared& s, int consumer, int stage, int r, Part& part) {
    const int row = (Tile::kPingPong ? 0 : consumer * Tile::kRows) + 64 * r;
    const unsigned char* const box = s.a(stage) + row * kTileWidth;
    warpgroup_arrive();
#pragma unroll
    for (int step = 0; step < kTileWidth / kMultiplyBytes; ++step) {
      warpgroup_multiply<T, Tile::kN, kMajorA, kMajorB>(
          part, tile_operand<kMajorA>(box, step, kInner * kTileWidth),
          tile_operand<kMajorB>(s.b(stage), step, kInner * kTileWidth), step > 0);
    }
    warpgroup_commit();
  }

  __device__ static void add_part(const Part& part, Part& sums) {
#pragma unroll
    for (int i = 0; i < Tile::kN / 2; ++i) sums[i] += part[i];
  }
};

}  // namespace opforge
