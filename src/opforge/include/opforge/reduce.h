// SPDX-License-Identifier: Apache-2.0
// Sums across threads, in a fixed order. Includes no torch header.
#pragma once

#include <opforge/shared.h>

namespace opforge {

constexpr int kWarp = 32;

// The sum over a group of `width` neighbouring lanes (a power of two up to 32), in every lane.
template <class A>
__device__ __forceinline__ A warp_sum(A value, int width = kWarp) {
  for (int step = width / 2; step > 0; step /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, step);
  }
  return value;
}

// The sum over each group of `width` threads (a power of two; all of the block's threads call).
// Valid in all of them.
template <class A>
__device__ __forceinline__ A group_sum(A value, int width) {
  if (width <= kWarp) return warp_sum(value, width);
  struct Partial {
    A warp[kWarp];
  };
  Partial& partial = shared<Partial>();
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, warps = width / kWarp;
  value = warp_sum(value);
  if (lane == 0) partial.warp[warp] = value;
  __syncthreads();
  const int first = warp / warps * warps;  // the first warp of this group
  A total = lane < warps ? partial.warp[first + lane] : A(0);
  return warp_sum(total);
}

}  // namespace opforge
