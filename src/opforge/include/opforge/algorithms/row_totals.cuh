// SPDX-License-Identifier: Apache-2.0
// Totals of rows on their way between warps and blocks. Includes no torch header.
//
//   put(own, i)   a thread puts in its part of the total of row i, and goes on with row i + 1
//   get(put, i)   waits until all parts of row i have come in, and adds them up
#pragma once

#include <opforge/core/async.h>
#include <opforge/core/cluster.h>
#include <opforge/core/reduce.h>

#include <opforge/algorithms/row_visitor.cuh>

namespace opforge {

// Of rows that `group` threads in each of `cluster` blocks share.
template <RowTotal Total, int MaxWarps, int MaxCluster>
class RowTotals {
  // Rounds t and t + 4 share a place. A thread that puts round t + 4 has got round t + 2. For that,
  // all warps have put round t + 2, which they do after they got round t. So nobody reads round t
  // any more.
  static constexpr int kRounds = 4;
  struct Shared {
    Total parts[kRounds][MaxWarps * MaxCluster];
    Barrier barrier[kRounds];
  };

 public:
  // All threads of the block; a __syncthreads() or cluster_sync() follows. The first `threads` of
  // a block take part.
  __device__ __forceinline__ RowTotals(int group, int cluster, int threads)
      : shared_(shared<Shared>()), group_(group), cluster_(cluster) {
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, warps = group / kWarp;
    const int first = cluster > 1 || warps == 0 ? 0 : warp / warps * warps;
    from_ = first + lane;
    to_ = first + warps * cluster;
    if (threadIdx.x == 0) {
      for (Barrier& one : shared_.barrier) init(one, cluster == 1 ? threads / kWarp : 1);
      publish_barriers();
    }
  }

  // Rounds count from 0 and are the same in all threads. get() wants what put() returned, and the
  // round after it has been put in.
  __device__ __forceinline__ Total put(const Total& own, unsigned round) {
    if (group_ < kWarp) return warp_total(own, group_);
    const Total total = warp_total(own);
    if (group_ == kWarp && cluster_ == 1) return total;
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, warps = group_ / kWarp;
    Barrier& barrier = shared_.barrier[round % kRounds];
    Total* const parts = shared_.parts[round % kRounds];
    if (cluster_ == 1) {
      if (lane == 0) {
        parts[warp] = total;
        arrive(barrier);
      }
    } else {
      if (threadIdx.x == 0) arrive_expecting(barrier, uint32_t(warps * cluster_ * sizeof(Total)));
      // What a warp sends also tells that all of its lanes are done with older rounds.
      __syncwarp();
      if (lane < cluster_) send(total, parts[cluster_rank() * warps + warp], barrier, lane);
    }
    return total;
  }

  __device__ __forceinline__ Total get(const Total& put, unsigned round) {
    if (group_ <= kWarp && cluster_ == 1) return put;
    wait(shared_.barrier[round % kRounds], round / kRounds % 2);
    const Total* parts = shared_.parts[round % kRounds];
    Total total;
#pragma unroll 1
    for (int i = from_; i < to_; i += kWarp) total += parts[i];
    return warp_total(total);
  }

 private:
  Shared& shared_;
  const int group_, cluster_;
  int from_, to_;  // the parts of this thread's row, of which every 32nd is its own
};

}  // namespace opforge
