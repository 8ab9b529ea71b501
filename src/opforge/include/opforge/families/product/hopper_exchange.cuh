// SPDX-License-Identifier: Apache-2.0
// Where blocks of a cluster share the inner dim of a tile (kSplit), their sums meet in shared
// memory. Includes no torch header.
#pragma once

#include <opforge/core/async.h>
#include <opforge/core/cluster.h>
#include <opforge/core/warpgroup.h>

#include <opforge/families/product/hopper_layout.cuh>

namespace opforge {

// Each block gets the sums of its chunks from all, and adds them in the order of their ranks. All
// warp groups that multiply call it; the one that fetches calls cluster_sync() as often.
template <class Layout>
__device__ void exchange_sums(const typename Layout::Shared& s, int consumer,
                              typename Layout::Sums& sums) {
  using Tile = typename Layout::Tile;
  constexpr int kAll = Layout::kAllChunks, kChunks = Layout::kChunks, kCols = Layout::kCols;
  constexpr int kParts = Layout::kParts, kValues = Layout::kValues;
  const int rank = cluster_rank(), thread = int(threadIdx.x) % kWarpGroup;
  const auto place = [&](int from, int chunk, int v) {
    return reinterpret_cast<float*>(s.start) +
           (((from * Tile::kConsumers + consumer) * Layout::kOwnChunks + chunk / Tile::kSplit) *
                kParts * kValues +
            v) *
               kWarpGroup +
           thread;
  };
  const auto value = [&](int chunk, int v) -> float& {
    return sums[chunk / kChunks][v / kValues * kCols / 2 + chunk % kChunks * kValues + v % kValues];
  };
  cluster_sync();  // everybody has multiplied: the stages are free
#pragma unroll
  for (int i = 0; i < kAll; ++i) {
    const int owner = i % Tile::kSplit;
    if (owner == rank) continue;
#pragma unroll
    for (int v = 0; v < kParts * kValues; ++v) *in_block(place(rank, i, v), owner) = value(i, v);
  }
  cluster_sync();
#pragma unroll
  for (int i = 0; i < kAll; ++i) {
    if (i % Tile::kSplit != rank) continue;
#pragma unroll
    for (int v = 0; v < kParts * kValues; ++v) {
      float sum = 0.0f;
#pragma unroll
      for (int from = 0; from < Tile::kSplit; ++from) {
        sum += from == rank ? value(i, v) : *place(from, i, v);
      }
      value(i, v) = sum;
    }
  }
  fence_for_copies();  // copies land there next
  cluster_sync();
}

}  // namespace opforge
