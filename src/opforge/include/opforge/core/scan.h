// SPDX-License-Identifier: Apache-2.0
// Prefix sums across threads, in a fixed order. Includes no torch header.
#pragma once

#include <opforge/core/async.h>
#include <opforge/core/cluster.h>
#include <opforge/core/reduce.h>

namespace opforge {

// The sum over this lane and those before it, in each group of `width` neighbouring lanes (a power
// of two up to 32). Lanes `step` apart belong together: 1, or with several columns side by side
// their number.
template <class A>
__device__ __forceinline__ A warp_scan(A value, int width = kWarp, int step = 1) {
  const int lane = threadIdx.x & (width - 1);
  for (; step < width; step *= 2) {
    const A before = __shfl_up_sync(0xffffffffu, value, step, width);
    if (lane >= step) value += before;
  }
  return value;
}

// The same of several values; the shuffles of one do not wait for those of another.
template <class A, int V>
__device__ __forceinline__ void warp_scan(A (&value)[V], int width) {
  const int lane = threadIdx.x & (width - 1);
  for (int step = 1; step < width; step *= 2) {
#pragma unroll
    for (int u = 0; u < V; ++u) {
      const A before = __shfl_up_sync(0xffffffffu, value[u], step, width);
      if (lane >= step) value[u] += before;
    }
  }
}

// From warp_scan's result, the sum over the lanes before this one.
template <class A>
__device__ __forceinline__ A warp_before(A scanned, int width = kWarp, int step = 1) {
  const A before = __shfl_up_sync(0xffffffffu, scanned, step, width);
  return int(threadIdx.x & (width - 1)) >= step ? before : A(0);
}

template <class A>
struct BlockScan {
  A before, total;
};

// The sum over the warps before this one, and over all, given each warp's sum. All threads call.
// `buffer` is 0 and 1 alternately from call to call, so that one barrier is enough.
template <class A>
__device__ __forceinline__ BlockScan<A> block_scan(A of_warp, int buffer) {
  struct Sums {
    A warp[2][kWarp];
  };
  Sums& sums = shared<Sums>();
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, warps = blockDim.x / kWarp;
  if (lane == 0) sums.warp[buffer][warp] = of_warp;
  __syncthreads();
  const A scanned = warp_scan(lane < warps ? sums.warp[buffer][lane] : A(0));
  const A through = __shfl_sync(0xffffffffu, scanned, max(warp - 1, 0));
  return {warp > 0 ? through : A(0), __shfl_sync(0xffffffffu, scanned, kWarp - 1)};
}

// The same over the blocks of a cluster, of at most 8. All threads call begin_cluster_scan(), as
// early as they can, and cluster_before() once.
template <class A>
struct ClusterSums {
  Barrier arrived;
  A block[8];
};

template <class A>
__device__ __forceinline__ void begin_cluster_scan() {
  if (threadIdx.x == 0) {
    init(shared<ClusterSums<A>>().arrived, 1);
    publish_barriers();
  }
  cluster_arrive_relaxed();
}

template <class A>
__device__ __forceinline__ A cluster_before(A of_block) {
  ClusterSums<A>& sums = shared<ClusterSums<A>>();
  const int rank = cluster_rank(), blocks = cluster_size();
  cluster_wait();
  if (threadIdx.x == 0) arrive_expecting(sums.arrived, uint32_t(blocks * sizeof(A)));
  if (int(threadIdx.x) < blocks) send(of_block, sums.block[rank], sums.arrived, threadIdx.x);
  wait(sums.arrived, 0);
  A before = 0;
#pragma unroll 1
  for (int b = 0; b < rank; ++b) before += sums.block[b];
  return before;
}

}  // namespace opforge
