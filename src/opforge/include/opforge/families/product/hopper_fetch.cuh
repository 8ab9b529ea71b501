// SPDX-License-Identifier: Apache-2.0
// How the warp group that fetches fills the stages with the operands of a tile: see
// families/product/hopper.cuh. Includes no torch header.
#pragma once

#include <opforge/core/async.h>
#include <opforge/core/tensor_map.h>
#include <opforge/families/product/call.h>

#include <cstdint>
#include <opforge/families/product/hopper_layout.cuh>

namespace opforge {

template <class Layout>
struct HopperFetch : Layout {
  using Layout::kBoxesA, Layout::kBoxesB, Layout::kStageBytes;
  using Layout::kMajorA, Layout::kMajorB, Layout::kGroups, Layout::kInner, Layout::kCols;
  using typename Layout::Tile, typename Layout::Barriers, typename Layout::Shared,
      typename Layout::Position;

  // Fetches the part of an operand's tile that is this block's to fetch for `Sharers` blocks, which
  // are `mask`: boxes of kRows outer indices.
  template <Major major, int Size, int Boxes, int Sharers>
  __device__ static void fetch(const TensorMap* maps, unsigned char* to, int outer, int part_size,
                               int inner, int batch, int rank, uint16_t mask, Barrier& full) {
    constexpr int kRows = Size / Boxes;
#pragma unroll
    for (int i = 0; i < Boxes; ++i) {
      if (Sharers > 1 && i % Sharers != rank) continue;
      const int part = i * kRows / part_size, at = outer + i * kRows - part * part_size;
      const int col = major == Major::inner ? inner : at, row = major == Major::inner ? at : inner;
      unsigned char* const box = to + i * kRows * kTileWidth;
      if constexpr (Sharers > 1) {
        tile_copy_to(mask, box, maps[part], col, row, batch, full);
      } else {
        tile_copy(box, maps[part], col, row, batch, full);
      }
    }
  }

  // One thread fetches all stages of a tile. `work` knows which.
  template <class Work>
  __device__ static void fetch_tile(const HopperMaps& maps, const Work& work, const Shared& s,
                                    int batch, int row, int col, Position& at) {
    const uint16_t mask_a =
        uint16_t(((1u << Tile::kClusterN) - 1) << work.rank_m * Tile::kClusterN);
    uint16_t mask_b = 0;
    for (int i = 0; i < Tile::kClusterM; ++i) {
      mask_b |= uint16_t(1u << (i * Tile::kClusterN + work.rank_n));
    }
    // Groups are parts of one matrix.
    const int batch_a = kGroups == Groups::none ? batch : 0;
    const int batch_b = kGroups == Groups::inner ? 0 : batch;
    Barriers& barriers = s.barriers();
    for (int i = 0; i < work.inner_count; ++i) {
      int inner = (work.inner_first + i) * kInner;
      if constexpr (kGroups == Groups::inner) inner += work.begin;
      wait(barriers.empty[at.stage], at.phase ^ 1);
      Barrier& full = barriers.full[at.stage];
      arrive_expecting(full, kStageBytes);
      fetch<kMajorA, Tile::kM, kBoxesA, Tile::kClusterN>(&maps.a, s.a(at.stage), row, Tile::kM,
                                                         inner, batch_a, work.rank_n, mask_a, full);
      fetch<kMajorB, Tile::kN, kBoxesB, Tile::kClusterM>(maps.b, s.b(at.stage), col, kCols, inner,
                                                         batch_b, work.rank_m, mask_b, full);
      at.advance();
    }
  }
};

}  // namespace opforge
