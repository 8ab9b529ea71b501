// SPDX-License-Identifier: Apache-2.0
// Products with groups whose sizes only the GPU knows, such as the rows of each expert in a mixture
// of experts. Each warp finds the groups of its tiles as it goes from tile to tile: it looks at 32
// groups at a time, one per lane. Nothing is read on the host, and nothing is launched before.
// Includes no torch header.
#pragma once

#include <cuda_runtime.h>
#include <opforge/core/cluster.h>
#include <opforge/core/shared.h>
#include <opforge/families/product/call.h>

#include <opforge/families/product/order.cuh>

namespace opforge {

// A walk over the tiles of all groups in order. All lanes of a warp call its functions together.
template <Groups kind>
class GroupCursor {
 public:
  // A group has `factor` tiles, or with Groups::rows so many for each `tile_rows` rows or fewer.
  __device__ GroupCursor(const ProductGroups& groups, int tile_rows, int factor)
      : tile_rows_(tile_rows), factor_(factor) {
    restart(groups);
  }

  // The tiles of all groups and, with Groups::rows, of the rows after the last group.
  __device__ int count(const ProductGroups& groups) {
    if constexpr (kind == Groups::inner) {
      return groups.count * factor_;
    } else {
      while (more(groups)) advance(groups);
      const int tiles = last(upto_);
      if (first_ > 0) restart(groups);
      return tiles;
    }
  }

  // Goes to a tile, no earlier than the last one. False if there are fewer.
  __device__ bool find(const ProductGroups& groups, int tile) {
    int lane;
    if constexpr (kind == Groups::inner) {
      group = tile / factor_;
      if (group >= groups.count) return false;
      index = tile % factor_;
      skip_to(groups, group);
      lane = group - first_;
    } else {
      while (tile >= last(upto_)) {
        if (!more(groups)) return false;
        advance(groups);
      }
      lane = __popc(__ballot_sync(kAll, upto_ <= tile));
      group = first_ + lane;
      index = tile - __shfl_sync(kAll, upto_ - tiles_, lane);
    }
    begin = __shfl_sync(kAll, begin_, lane);
    end = __shfl_sync(kAll, end_, lane);
    return true;
  }

  int group = 0;           // of the tile; groups.count for the rows after the last group
  int begin = 0, end = 0;  // of the group
  int index = 0;           // of the tile in its group

 private:
  static constexpr unsigned kAll = 0xffffffffu;

  __device__ static int last(int value) { return __shfl_sync(kAll, value, 31); }

  __device__ void restart(const ProductGroups& groups) {
    first_ = -32;
    end_ = upto_ = 0;
    advance(groups);
  }

  // Whether there are rows after the 32 groups.
  __device__ bool more(const ProductGroups& groups) const { return last(end_) < groups.total; }

  // To the next 32 groups. The rows after the last group are one more.
  __device__ void advance(const ProductGroups& groups) {
    const int end_before = last(end_), lane = int(threadIdx.x) % 32;
    first_ += 32;
    const int group = first_ + lane;
    end_ = max(end_before, group < groups.count ? groups.end(group) : groups.total);
#pragma unroll
    for (int by = 1; by < 32; by *= 2) {
      const int before = __shfl_up_sync(kAll, end_, by);
      if (lane >= by) end_ = max(end_, before);
    }
    begin_ = __shfl_up_sync(kAll, end_, 1);
    if (lane == 0) begin_ = end_before;
    if constexpr (kind == Groups::rows) {
      const int upto_before = last(upto_);
      tiles_ = (end_ - begin_ + tile_rows_ - 1) / tile_rows_ * factor_;
      upto_ = tiles_;
#pragma unroll
      for (int by = 1; by < 32; by *= 2) {
        const int before = __shfl_up_sync(kAll, upto_, by);
        if (lane >= by) upto_ += before;
      }
      upto_ += upto_before;
    }
  }

  // To the 32 groups that have this one.
  __device__ void skip_to(const ProductGroups& groups, int group) {
    const int first = group / 32 * 32;
    if (first == first_) return;
    int end = last(end_);
    for (int i = first_ + 32 + int(threadIdx.x) % 32; i < first && end < groups.total; i += 32) {
      end = max(end, groups.end(i));
    }
    for (int by = 16; by > 0; by /= 2) end = max(end, __shfl_xor_sync(kAll, end, by));
    end_ = end;
    first_ = first - 32;
    advance(groups);
  }

  int tile_rows_, factor_;
  int first_;                 // group of lane 0
  int begin_, end_;           // of this lane's group
  int tiles_ = 0, upto_ = 0;  // with Groups::rows: of this lane's group, of all groups up to it
};

// A tile and its group.
struct GroupTile {
  bool there;
  int group, begin, end, index;  // as in GroupCursor
};

// For a kernel with a tile to a block. All threads call it, once.
template <Groups kind>
__device__ __forceinline__ GroupTile find_tile(const ProductGroups& groups, int tile_rows,
                                               int factor, int tile) {
  GroupTile& found = shared<GroupTile>();
  if (threadIdx.x < 32) {
    GroupCursor<kind> cursor(groups, tile_rows, factor);
    const bool there = cursor.find(groups, tile);
    if (threadIdx.x == 0) found = {there, cursor.group, cursor.begin, cursor.end, cursor.index};
  }
  __syncthreads();
  return found;
}

// What HopperProduct asks about tiles, as AllTiles answers for batches.
template <class Layout>
struct GroupTiles {
  using Tile = typename Layout::Tile;
  using Params = typename Layout::Params;
  static constexpr Groups kKind = Layout::kGroups;
  static constexpr int kRows = Tile::kM * Tile::kClusterM, kCols = Layout::kCols * Tile::kClusterN;
  static_assert(kKind != Groups::none);

  int tiles, step;  // counted in clusters
  int rank_m, rank_n;
  int inner_first = 0, inner_count = 0;  // stages
  int begin = 0, inner = 0;              // of the group: its first row or inner index, inner size
  int skipped = 0;                       // of these inner indices, which the group does not have

  __device__ explicit GroupTiles(const Params& p)
      : cursor_(p.groups, kRows,
                kKind == Groups::rows ? ceil(p.n, kCols) : ceil(p.m, kRows) * ceil(p.n, kCols)) {
    const int rank = Tile::kBlocks == 1 ? 0 : cluster_rank();
    rank_m = Tile::kSplit > 1 ? 0 : rank / Tile::kClusterN;
    rank_n = Tile::kSplit > 1 ? 0 : rank % Tile::kClusterN;
    part_ = Tile::kSplit > 1 ? rank : 0;
    tiles = cursor_.count(p.groups);
    step = int(gridDim.x) / Tile::kBlocks;
  }

  __device__ void locate(const Params& p, int tile, int& batch, int& row, int& col) {
    cursor_.find(p.groups, tile);
    batch = cursor_.group;
    begin = cursor_.begin;
    const int size = cursor_.end - begin, rows = kKind == Groups::rows ? size : p.m;
    int i, j;
    walk_tiles(p, cursor_.index, ceil(rows, kRows), ceil(p.n, kCols), i, j);
    row = (i * Tile::kClusterM + rank_m) * Tile::kM + (kKind == Groups::rows ? begin : 0);
    col = (j * Tile::kClusterN + rank_n) * Layout::kCols;
    // Rows after the last group are no product of anything.
    inner = kKind == Groups::inner ? size : batch < p.batches ? p.k : 0;
    if constexpr (kKind == Groups::inner && Layout::kMajorA == Major::inner) {
      // Boxes begin at multiples of 16 bytes along the inner dim.
      skipped = inner == 0 ? 0 : begin % (16 / int(sizeof(typename Layout::T)));
      begin -= skipped, inner += skipped;
    }
    const int stages = ceil(inner, Layout::kInner), share = ceil(stages, Tile::kSplit);
    inner_first = part_ * share;
    inner_count = max(0, min(stages, inner_first + share) - inner_first);
  }

  // Stages of a tile that follows the ones located so far, or none. It becomes the located one.
  __device__ int stages_of(const Params& p, int tile) {
    if (tile >= tiles) return 0;
    int batch, row, col;
    locate(p, tile, batch, row, col);
    return inner_count;
  }

  // Where the rows of the result end that a tile may write.
  __device__ int rows_end(const Params& p) const {
    return kKind == Groups::rows ? cursor_.end : p.m;
  }

  // Where the group's inner indices begin and end in a stage: at 0 or before, at its end or after.
  __device__ int first_valid(int stage) const {
    return skipped - (inner_first + stage) * Layout::kInner;
  }
  __device__ int last_valid(int stage) const {
    return inner - (inner_first + stage) * Layout::kInner;
  }

 private:
  __device__ static int ceil(int size, int tile) { return (size + tile - 1) / tile; }

  GroupCursor<kKind> cursor_;
  int part_;
};

}  // namespace opforge
