// SPDX-License-Identifier: Apache-2.0
// Which tiles of the result a block makes, where no tile is cut: see groups.cuh and stream.cuh for
// others. Includes no torch header.
#pragma once

#include <opforge/core/cluster.h>

#include <opforge/families/product/hopper_layout.cuh>
#include <opforge/families/product/order.cuh>

namespace opforge {

// The tiles of this block, and of the inner dim its part.
template <class Layout>
struct AllTiles {
  using Tile = typename Layout::Tile;
  using Params = typename Layout::Params;
  static constexpr int kCols = Layout::kCols, kInner = Layout::kInner;

  int tiles_m, tiles_n, tiles, step;  // counted in clusters
  int rank_m, rank_n;
  int inner_first, inner_count;  // stages

  __device__ explicit AllTiles(const Params& p) {
    const int rank = Tile::kBlocks == 1 ? 0 : cluster_rank();
    rank_m = Tile::kSplit > 1 ? 0 : rank / Tile::kClusterN;
    rank_n = Tile::kSplit > 1 ? 0 : rank % Tile::kClusterN;
    tiles_m = (p.m + Tile::kM * Tile::kClusterM - 1) / (Tile::kM * Tile::kClusterM);
    tiles_n = (p.n + kCols * Tile::kClusterN - 1) / (kCols * Tile::kClusterN);
    tiles = tiles_m * tiles_n * p.batches;
    step = int(gridDim.x) / Tile::kBlocks;
    const int stages = (p.k + kInner - 1) / kInner;
    const int share = (stages + Tile::kSplit - 1) / Tile::kSplit;
    const int part = Tile::kSplit > 1 ? rank : 0;
    inner_first = part * share;
    inner_count = max(0, min(stages, inner_first + share) - inner_first);
  }

  __device__ void locate(const Params& p, int tile, int& batch, int& row, int& col) const {
    const int in_batch = tiles_m * tiles_n;
    batch = tile / in_batch;
    int i, j;
    walk_tiles(p, tile - batch * in_batch, tiles_m, tiles_n, i, j);
    row = (i * Tile::kClusterM + rank_m) * Tile::kM;
    col = (j * Tile::kClusterN + rank_n) * kCols;
  }

  __device__ int stages_of(const Params&, int) const { return inner_count; }
  __device__ int rows_end(const Params& p) const { return p.m; }
};

}  // namespace opforge
