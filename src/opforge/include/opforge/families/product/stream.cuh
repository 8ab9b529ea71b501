// SPDX-License-Identifier: Apache-2.0
// Products whose tiles do not fill the GPU's last round (stream-K). The tiles of that round are cut
// along the inner dim so that every cluster gets the same number of stages, whether they are of one
// tile or end in the next. Who makes a part of a tile writes its sums to memory; who comes last
// adds them up, in the order of the inner dim, and writes the result. So nobody waits for anybody,
// and repeated runs have the same bits. Includes no torch header.
//
// Bytes: beside the product's, 4 bytes for each element of such a tile and each part of it, twice.
#pragma once

#include <opforge/core/cluster.h>

#include <cstdint>
#include <opforge/families/product/hopper_layout.cuh>
#include <opforge/families/product/hopper_tiles.cuh>

namespace opforge {

// A part of a tile.
struct StreamPart {
  int64_t tile;     // of those that are cut
  int first, last;  // clusters that have parts of it, in order
  bool whole;       // this one has all of it
};

// What HopperProduct asks about tiles, as AllTiles answers where no tile is cut.
template <class Layout>
struct StreamTiles : AllTiles<Layout> {
  using Base = AllTiles<Layout>;
  using Tile = typename Layout::Tile;
  using Params = typename Layout::Params;
  using Base::tiles, Base::step, Base::inner_first, Base::inner_count;

  StreamPart part{};

  __device__ explicit StreamTiles(const Params& p) : Base(p), stages_(Base::inner_count) {
    cluster_ = int(blockIdx.x) / Tile::kBlocks;
    cut_ = tiles % step;
    const int rounds = tiles / step;
    begin_ = first_of(cluster_), end_ = first_of(cluster_ + 1);
    parts_ = end_ > begin_ ? int((end_ - 1) / stages_ - begin_ / stages_) + 1 : 0;
    tiles = cluster_ + (parts_ + rounds) * step;  // its parts come first, then whole tiles
  }

  // `index` counts this cluster's parts and tiles, in steps.
  __device__ void locate(const Params& p, int index, int& batch, int& row, int& col) {
    const int i = (index - cluster_) / step;
    int tile = cut_ + (i - parts_) * step + cluster_;
    inner_first = 0, inner_count = stages_;
    if (i < parts_) {
      tile = int(begin_ / stages_) + i;
      const int64_t start = int64_t(tile) * stages_;
      inner_first = int(max(begin_ - start, int64_t(0)));
      inner_count = int(min(end_ - start, int64_t(stages_))) - inner_first;
      part = {tile, owner_of(start), owner_of(start + stages_ - 1), inner_count == stages_};
    } else {
      part.whole = true;
    }
    Base::locate(p, tile, batch, row, col);
  }

  // Where a cluster's sums of a tile are: it has up to two parts that are not whole.
  __device__ int place_of(int cluster, int64_t tile) const {
    return cluster * 2 + (first_of(cluster) / stages_ == tile ? 0 : 1);
  }
  __device__ int cluster() const { return cluster_; }

 private:
  // The first stage of a cluster, counted over all tiles that are cut, and who has a stage.
  __device__ int64_t first_of(int cluster) const {
    return int64_t(cluster) * cut_ * stages_ / step;
  }
  __device__ int owner_of(int64_t stage) const {
    return int(((stage + 1) * step - 1) / (int64_t(cut_) * stages_));
  }

  int stages_, cluster_, cut_, parts_;
  int64_t begin_, end_;
};

// Gives the sums of a part to who comes last, and gets those of all parts if that is the caller,
// the threads of a warp group. False if it is not.
template <class Layout>
__device__ bool combine_parts(const typename Layout::Params& p, const StreamTiles<Layout>& work,
                              const typename Layout::Shared& s, int consumer,
                              typename Layout::Sums& sums) {
  using Tile = typename Layout::Tile;
  constexpr int kAll = Layout::kRowBlocks * Tile::kN / 2;  // of a thread
  if (work.part.whole) return true;
  const int thread = int(threadIdx.x) % kWarpGroup;
  const int group = (Tile::kBlocks == 1 ? 0 : cluster_rank()) * Tile::kConsumers + consumer;
  constexpr int kGroups = Tile::kBlocks * Tile::kConsumers;
  const auto place = [&](int cluster) {
    const int64_t at = int64_t(work.place_of(cluster, work.part.tile)) * kGroups + group;
    return reinterpret_cast<float4*>(p.partial + at * kAll * kWarpGroup) + thread;
  };
  float* const value = &sums[0][0];
  float4* const own = place(work.cluster());
#pragma unroll
  for (int v = 0; v < kAll; v += 4) {
    own[v / 4 * kWarpGroup] = {value[v], value[v + 1], value[v + 2], value[v + 3]};
  }
  int& comes_last = s.barriers().comes_last[consumer];
  Layout::sync_group(consumer);
  if (thread == 0) {
    __threadfence();  // they are there before they are counted
    const int before = atomicAdd(p.counts + work.part.tile * kGroups + group, 1);
    comes_last = before == work.part.last - work.part.first;
    __threadfence();  // all were counted before they are read
  }
  Layout::sync_group(consumer);
  if (!comes_last) return false;
#pragma unroll
  for (int v = 0; v < kAll; ++v) value[v] = 0.0f;
#pragma unroll 1
  for (int cluster = work.part.first; cluster <= work.part.last; ++cluster) {
    const float4* const from = place(cluster);
#pragma unroll
    for (int v = 0; v < kAll; v += 4) {
      const float4 four = from[v / 4 * kWarpGroup];
      value[v] += four.x, value[v + 1] += four.y, value[v + 2] += four.z, value[v + 3] += four.w;
    }
  }
  return true;
}

}  // namespace opforge
