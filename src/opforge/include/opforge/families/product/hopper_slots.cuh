// SPDX-License-Identifier: Apache-2.0
// What the epilogue of families/product/hopper.cuh reads and writes passes through slots in shared
// memory: each warp has some, of 16 rows x 128 bytes, and does not wait for other warps. The copy
// engine moves what is in them, or where rows are not aligned the warp itself. Includes no torch
// header.
#pragma once

#include <opforge/core/async.h>
#include <opforge/core/matrices.h>
#include <opforge/core/tensor_map.h>
#include <opforge/core/types.h>

#include <cstdint>
#include <opforge/families/product/hopper_layout.cuh>

namespace opforge {

// One warp's slots and what is in them.
template <class Layout>
struct HopperSlots : Layout {
  using Layout::kChunkCols, Layout::kChunks, Layout::kAllChunks, Layout::kStep;
  using Layout::kSlots, Layout::kSlotRows, Layout::kSlotBytes;
  using Layout::leads, Layout::first_chunk;
  using typename Layout::Tile, typename Layout::Epilogue, typename Layout::Out,
      typename Layout::Params, typename Layout::Shared;

  int consumer, warp, per_chunk;
  bool two_groups;
  int group = 0;
  uint32_t phase = 0;

  __device__ HopperSlots(const Params& p, int consumer) : consumer(consumer) {
    // The shuffle tells the compiler that it is the same in all lanes.
    warp = __shfl_sync(0xffffffffu, int(threadIdx.x) / 32, 0) - 4;
    per_chunk = max(p.ins, p.outs);
    two_groups = 2 * per_chunk <= kSlots;
  }
  __device__ int first() const { return group * per_chunk; }
  __device__ void advance() {
    if (two_groups) group ^= 1;
    if (group == 0) phase ^= 1;
  }
  __device__ unsigned char* slot(const Shared& s, int i) const { return s.slot(warp, first() + i); }

  // Until the slots that come next have been read by the stores from them. One thread calls it.
  __device__ void await() const { two_groups ? bulk_wait_read<1>() : bulk_wait_read<0>(); }

  // Asks for what the epilogue reads beside a chunk.
  __device__ void fetch(const HopperMaps& maps, const Params& p, const Shared& s, int batch,
                        int row, int col) const {
    Barrier& full = s.barriers().in[warp][group];
    arrive_expecting(full, uint32_t(p.ins * kSlotBytes));
#pragma unroll 1
    for (int i = 0; i < p.ins; ++i) {
      tile_copy(slot(s, i), maps.in[i], col, row, batch, full);
    }
  }

  // The same of a tile's first chunk, if it reads anything.
  __device__ void fetch_first(const HopperMaps& maps, const Params& p, const Shared& s, int batch,
                              int tile_row, int tile_col) const {
    const int i = first_chunk();
    if (Epilogue::kIn == 0 || p.ins == 0 || p.plain || !leads() || i >= kAllChunks) return;
    const int first_row = tile_row + (Tile::kPingPong ? 0 : consumer * Tile::kRows);
    await();
    fetch(maps, p, s, batch, first_row + i / kChunks * 64 + warp % 4 * kSlotRows,
          tile_col + i % kChunks * kChunkCols);
  }

  // Matrices whose rows are not aligned are copied to and from the slots by the warp itself.
  // f gets a place in the matrix, or null beyond its end, and the one in the slot.
  template <class F>
  __device__ static void each_plain(const ProductMatrix& x, unsigned char* slot, const Params& p,
                                    int batch, int first_row, int first_col, int end, const F& f) {
    const int lane = int(threadIdx.x) % 32;
    Out* const data = static_cast<Out*>(x.data) + batch * x.batch_stride + first_col;
#pragma unroll 1
    for (int row = 0; row < kSlotRows; ++row) {
#pragma unroll 1
      for (int col = lane; col < kChunkCols; col += 32) {
        const bool there = first_row + row < end && first_col + col < p.n;
        f(there ? data + (first_row + row) * x.row_stride + col : nullptr,
          *reinterpret_cast<Out*>(slot + swizzled(row, col * int(sizeof(Out)))));
      }
    }
  }
  __device__ void load_plain(const Params& p, const Shared& s, int batch, int row, int col) const {
#pragma unroll 1
    for (int i = 0; i < p.ins; ++i) {
      each_plain(p.in[i], slot(s, i), p, batch, row, col, p.m,
                 [](const Out* from, Out& to) { to = from == nullptr ? Out{} : *from; });
    }
  }
  __device__ void store_plain(const Params& p, const Shared& s, int batch, int row, int col,
                              int end) const {
#pragma unroll 1
    for (int i = 0; i < p.outs; ++i) {
      each_plain(p.out[i], slot(s, i), p, batch, row, col, end, [](Out* to, const Out& from) {
        if (to != nullptr) *to = from;
      });
    }
  }

  // The rows of a chunk before `end`, where a tensor map would also write those of the next group.
  __device__ void store_rows(const Params& p, const Shared& s, int row, int col, int end) const {
#pragma unroll 1
    for (int i = 0; i < p.outs; ++i) {
      const unsigned char* const from = slot(s, i);
      Out* const data = static_cast<Out*>(p.out[i].data) + col;
#pragma unroll 1
      for (int at = int(threadIdx.x) % 32 * 16; at < kSlotBytes; at += 32 * 16) {
        const int r = at / kTileWidth, c = at % kTileWidth / int(sizeof(Out));
        if (row + r >= end || col + c >= p.n) continue;
        *reinterpret_cast<int4*>(data + (row + r) * p.out[i].row_stride + c) =
            *reinterpret_cast<const int4*>(from + swizzled(r, at % kTileWidth));
      }
    }
  }

  // A thread's place in the slots: with 16-bit results, that of the row which it names to
  // load_matrices() and store_matrices(), else of the first of its pairs.
  static constexpr bool kByMatrix = sizeof(Out) == 2;
  __device__ static int place() {
    const int lane = int(threadIdx.x) % 32;
    if constexpr (kByMatrix) return swizzled(lane % 16, lane / 16 * 16);
    return swizzled(lane / 4, lane % 4 * 2 * int(sizeof(Out)));
  }

  struct alignas(2 * sizeof(Out)) Pair {
    Out value[2];
  };
  // Boxes are aligned, so that places further along a row differ in a few bits.
  __device__ static Pair& pair_at(unsigned char* slot, int place, int v) {
    const int along = v / 4 * 8 * int(sizeof(Out)), rows = v / 2 % 2 * 8;
    return *reinterpret_cast<Pair*>(slot + (place ^ along) + rows * kTileWidth);
  }

  // A step's values from a slot, and to it. `first` is the first of the step in the chunk.
  __device__ static void read(unsigned char* slot, int place, int first, float (&to)[kStep]) {
#pragma unroll
    for (int v = 0; v < kStep; v += kByMatrix ? 8 : 2) {
      if constexpr (kByMatrix) {
        uint32_t bits[4];
        load_matrices(bits, slot + (place ^ (first + v) / 8 * 32));
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          unpack_pair<Out>(bits[i], to[v + 2 * i], to[v + 2 * i + 1]);
        }
      } else {
        const Pair pair = pair_at(slot, place, first + v);
        to[v] = widen(pair.value[0]), to[v + 1] = widen(pair.value[1]);
      }
    }
  }
  __device__ static void write(unsigned char* slot, int place, int first,
                               const float (&from)[kStep]) {
#pragma unroll
    for (int v = 0; v < kStep; v += kByMatrix ? 8 : 2) {
      if constexpr (kByMatrix) {
        uint32_t bits[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          bits[i] = pack_pair<Out>(from[v + 2 * i], from[v + 2 * i + 1]);
        }
        store_matrices(slot + (place ^ (first + v) / 8 * 32), bits);
      } else {
        pair_at(slot, place, first + v) = {narrow<Out>(from[v]), narrow<Out>(from[v + 1])};
      }
    }
  }
};

}  // namespace opforge
