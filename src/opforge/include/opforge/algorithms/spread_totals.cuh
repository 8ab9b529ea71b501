// SPDX-License-Identifier: Apache-2.0
// Several totals of rows on their way between the blocks of a cluster. Includes no torch header.
//
// As row_totals.cuh, but a lane adds up only one of the V values of its warp: half of the
// instructions if there are four.
#pragma once

#include <opforge/core/async.h>
#include <opforge/core/cluster.h>
#include <opforge/core/reduce.h>
#include <opforge/core/vec.h>

namespace opforge {

// The sum over a warp of value lane % V.
template <int V, class A>
__device__ __forceinline__ A spread_sum(A (&v)[V]) {
  const unsigned lane = threadIdx.x % kWarp;
#pragma unroll
  for (int step = 1; step < V; step *= 2) {
    const bool odd = (lane & step) != 0;
#pragma unroll
    for (int i = 0; i < V / 2 / step; ++i) {
      const A mine = odd ? v[2 * i + 1] : v[2 * i], other = odd ? v[2 * i] : v[2 * i + 1];
      v[i] = mine + __shfl_xor_sync(0xffffffffu, other, step);
    }
  }
  A sum = v[0];
#pragma unroll
  for (int step = V; step < kWarp; step *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  return sum;
}

// The same in all lanes, of all values.
template <int V, class A>
__device__ __forceinline__ void warp_sums(A (&v)[V]) {
  const A sum = spread_sum(v);
#pragma unroll
  for (int i = 0; i < V; ++i) v[i] = __shfl_sync(0xffffffffu, sum, i);
}

// The sums of V values over a row, which lies in `threads` threads, whole warps, of `cluster`
// blocks each.
template <class A, int V, int MaxWarps, int MaxCluster>
class SpreadTotals {
  static_assert(V * MaxCluster <= kWarp && kWarp % V == 0);
  // A thread that puts in round t + 2 has got round t + 1, for which all warps put in theirs, after
  // they had got round t: nobody reads it any more.
  static constexpr unsigned kRounds = 2;
  struct Shared {
    Vec<A, V> parts[kRounds][MaxWarps * MaxCluster];
    Barrier barrier[kRounds];
  };

 public:
  // All threads of the block; a cluster_sync() follows. The first `threads` of a block take part.
  __device__ __forceinline__ SpreadTotals(int threads, int cluster)
      : shared_(shared<Shared>()),
        cluster_(cluster),
        own_(cluster_rank() * (threads / kWarp) + threadIdx.x / kWarp),
        all_(threads / kWarp * cluster) {
    if (threadIdx.x == 0) {
      for (Barrier& one : shared_.barrier) init(one, 1);
      publish_barriers();
    }
  }

  // Rounds count from 0 and are the same in all threads, which get one before they put the next.
  __device__ __forceinline__ void put(A (&own)[V], unsigned round) {
    const A value = spread_sum(own);
    const int lane = threadIdx.x % kWarp;
    Barrier& barrier = shared_.barrier[round % kRounds];
    A& part = shared_.parts[round % kRounds][own_].value[lane % V];
    if (threadIdx.x == 0) arrive_expecting(barrier, uint32_t(all_ * V * sizeof(A)));
    // What a warp sends also tells that all of its lanes are done with older rounds.
    __syncwarp();
    if (lane / V < cluster_) send(value, part, barrier, lane / V);
  }

  __device__ __forceinline__ void get(A (&total)[V], unsigned round) {
    wait(shared_.barrier[round % kRounds], round / kRounds % 2);
    const Vec<A, V>* const parts = shared_.parts[round % kRounds];
    fill(total, A(0));
#pragma unroll 1
    for (int i = threadIdx.x % kWarp; i < all_; i += kWarp) {
      const Vec<A, V> part = parts[i];
#pragma unroll
      for (int e = 0; e < V; ++e) total[e] += part.value[e];
    }
    warp_sums(total);
  }

 private:
  Shared& shared_;
  const int cluster_, own_, all_;  // own_: this warp's part of all_
};

}  // namespace opforge
