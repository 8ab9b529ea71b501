// SPDX-License-Identifier: Apache-2.0
// The epilogue of families/product/hopper.cuh: from the sums of a tile to what is written, a chunk
// of 64 rows x 128 bytes at a time. Includes no torch header.
#pragma once

#include <opforge/core/async.h>
#include <opforge/core/tensor_map.h>
#include <opforge/families/product/call.h>

#include <algorithm>
#include <cstdint>
#include <opforge/families/product/hopper_columns.cuh>
#include <opforge/families/product/hopper_layout.cuh>
#include <opforge/families/product/hopper_slots.cuh>

namespace opforge {

template <class Layout>
struct HopperEpilogue : Layout {
  using Layout::kChunkCols, Layout::kChunks, Layout::kAllChunks, Layout::kValues, Layout::kStep;
  using Layout::kGroups, Layout::kParts, Layout::kCols, Layout::kColumns;
  using Layout::kSlotRows, Layout::leads, Layout::sync_group, Layout::first_chunk;
  using typename Layout::Tile, typename Layout::Epilogue, typename Layout::Params,
      typename Layout::Shared, typename Layout::Sums;
  using Slots = HopperSlots<Layout>;
  using Columns = HopperColumns<Layout>;

  // Adds up the 64 rows of a chunk: first those of a warp, then those of all.
  __device__ static void add_rows(const Shared& s, int consumer, int first,
                                  const float (&out)[kStep]) {
    const int warp = int(threadIdx.x) % kWarpGroup / 32, lane = int(threadIdx.x) % 32;
    float* const to = s.sums(consumer) + warp * kChunkCols;
#pragma unroll
    for (int v = 0; v < kStep; v += 4) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float sum = out[v + e] + out[v + e + 2];
#pragma unroll
        for (int other = 4; other < 32; other *= 2) {
          sum += __shfl_xor_sync(0xffffffffu, sum, other);
        }
        if (lane < 4) to[(first + v) / 4 * 8 + lane * 2 + e] = sum;
      }
    }
  }

  __device__ static void store_sums(const Params& p, const Shared& s, int consumer, int first_row,
                                    int first_col) {
    const int col = int(threadIdx.x) % kWarpGroup;
    if (col >= kChunkCols || first_col + col >= p.n || first_row >= p.m) return;
    const float* const from = s.sums(consumer) + col;
    p.sums[int64_t(first_row / 64) * p.n + first_col + col] =
        (from[0] + from[kChunkCols]) + (from[2 * kChunkCols] + from[3 * kChunkCols]);
  }

  // The sums of a chunk: the registers themselves where it is known which one.
  __device__ static void pick(const Sums& sums, int chunk, float (&to)[kParts][kValues]) {
#pragma unroll
    for (int i = 0; i < kAllChunks; ++i) {
      if (i != chunk) continue;
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
#pragma unroll
        for (int v = 0; v < kValues; ++v) {
          to[part][v] = sums[i / kChunks][part * kCols / 2 + i % kChunks * kValues + v];
        }
      }
    }
  }

  // How many matrices a transform reads and writes, if it says so: see epilogue.cuh.
  template <class Transform>
  static constexpr bool kKnown = requires { Transform::kOuts; };

  using In = float[std::max(Epilogue::kIn, 1)][kStep];
  using Results = float[Epilogue::kOut][kStep];

  // One step of a chunk, from the slots and the registers to the slots.
  template <class Transform>
  __device__ __forceinline__ static void transform_step(const Transform& transform, const Params& p,
                                                        const Shared& s, const Slots& slots,
                                                        int in_slot, int first,
                                                        const float (&chunk)[kParts][kValues],
                                                        const typename Columns::OfStep& columns) {
    int ins = p.ins, outs = p.outs;
    if constexpr (kKnown<Transform>) ins = Transform::kIns, outs = Transform::kOuts;
    float values[kParts][kStep];
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int v = 0; v < kStep; ++v) values[part][v] = chunk[part][first + v];
    }
    In in;
#pragma unroll
    for (int j = 0; j < Epilogue::kIn; ++j) {
      if (j < ins) Slots::read(slots.slot(s, j), in_slot, first, in[j]);
    }
    Results out;
    transform(values, in, columns, out);
#pragma unroll
    for (int j = 0; j < Epilogue::kOut; ++j) {
      if (j < outs) Slots::write(slots.slot(s, j), in_slot, first, out[j]);
    }
    if constexpr (Epilogue::kSums) {
      if (p.sums != nullptr) add_rows(s, slots.consumer, first, out[0]);
    }
  }

  // Hides from the compiler where a value comes from, so that it does not keep what follows from it
  // in registers while the sums of the next tile need them.
  __device__ static int recompute(int value) {
#if !defined(OPFORGE_SIM)
    asm volatile("" : "+r"(value));
#endif
    return value;
  }

  // The result of a tile: all chunks of a warp group, or with kSplit those that are this block's.
  // Rows from `end` on are not this tile's. `transform` is the epilogue without run-time choices.
  // The code of a short one is there for each chunk, with its registers. Of others there is one
  // copy for all chunks, which stays in the instruction cache.
  template <class Transform>
  __device__ __forceinline__ static void finish(const Transform& transform, const HopperMaps& maps,
                                                const Params& p, const Shared& s, Slots& slots,
                                                int batch, int tile_row, int tile_col, int end,
                                                const Sums& sums) {
    constexpr bool kShort = kKnown<Transform> && Tile::kSplit == 1;
    constexpr bool kEarly = kShort && kColumns <= 1;  // more would not fit the registers
    constexpr int kCopies = kShort ? kAllChunks : 1;
    int ins = p.ins, outs = p.outs;
    if constexpr (kKnown<Transform>) ins = Transform::kIns, outs = Transform::kOuts;
    const bool plain = kKnown<Transform> ? false : p.plain;
    const int consumer = slots.consumer;
    const int in_slot = recompute(Slots::place());
    const int first_row = tile_row + (Tile::kPingPong ? 0 : consumer * Tile::kRows);
    const bool fetches = Epilogue::kIn > 0 && ins > 0 && !plain;
    const int warp_row = slots.warp % 4 * kSlotRows;
    const auto row_of = [&](int i) { return first_row + i / kChunks * 64 + warp_row; };
    const auto col_of = [&](int i) { return tile_col + i % kChunks * kChunkCols; };
#pragma unroll kCopies
    for (int i = first_chunk(); i < kAllChunks; i += Tile::kSplit) {
      const int row = row_of(i), col = col_of(i), in_tile = i % kChunks * kChunkCols;
      float chunk[kParts][kValues];
      pick(sums, i, chunk);
      // Those of a short transform are asked for before it waits.
      typename Columns::OfStep columns[kEarly ? kValues / kStep : 1];
      if constexpr (kEarly) {
#pragma unroll
        for (int j = 0; j < kValues / kStep; ++j) {
          Columns::read(s, consumer, in_tile + j * kStep * 2, columns[j]);
        }
      }
      if (fetches) {
        wait(s.barriers().in[slots.warp][slots.group], slots.phase);
      } else {
        if (plain) {
          slots.load_plain(p, s, batch, row, col);
        } else if (leads()) {
          slots.await();
        }
        __syncwarp();
      }
#pragma unroll
      for (int first = 0; first < kValues; first += kStep) {
        if constexpr (!kEarly) Columns::read(s, consumer, in_tile + first * 2, columns[0]);
        transform_step(transform, p, s, slots, in_slot, first, chunk,
                       columns[kEarly ? first / kStep : 0]);
      }
      fence_for_copies();
      __syncwarp();
      if (plain) {
        slots.store_plain(p, s, batch, row, col, end);
        __syncwarp();
      } else if (kGroups == Groups::rows && row + kSlotRows > end) {
        slots.store_rows(p, s, row, col, end);
        __syncwarp();
        if (leads()) bulk_commit();  // of nothing: Slots::await() counts chunks
      } else if (leads()) {
#pragma unroll
        for (int j = 0; j < Epilogue::kOut; ++j) {
          if (j < outs) tile_store(maps.out[j], col, row, batch, slots.slot(s, j));
        }
        bulk_commit();
      }
      if constexpr (Epilogue::kSums) {
        if (p.sums != nullptr) {
          sync_group(consumer);
          store_sums(p, s, consumer, row - warp_row, col);
          sync_group(consumer);
        }
      }
      slots.advance();
      if (fetches && leads() && i + Tile::kSplit < kAllChunks) {
        slots.await();
        slots.fetch(maps, p, s, batch, row_of(i + Tile::kSplit), col_of(i + Tile::kSplit));
      }
    }
  }
};

}  // namespace opforge
