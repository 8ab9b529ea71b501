// SPDX-License-Identifier: Apache-2.0
// A warp per row of 8 KB: eight 16-byte loads of a thread are in flight before the first use, and
// nothing but one float per row is written. What is left is the speed of reading.
#pragma once

#include <opforge/core/launch.h>
#include <opforge/core/vec.h>

#include <cmath>

namespace opforge {

constexpr int kWidth = 2048, kFlight = 8, kWarps = 4;

__global__ void __launch_bounds__(32 * kWarps) row_max(const float* x, float* y, int64_t rows) {
  const int lane = threadIdx.x % 32;
  const int64_t row = int64_t(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (row >= rows) return;  // the whole warp
  const float* start = x + row * kWidth + lane * 4;
  float largest = -INFINITY;
  Vec<float, 4> v[kFlight];
#pragma unroll
  for (int trip = 0; trip < kWidth / (128 * kFlight); ++trip) {
#pragma unroll
    for (int u = 0; u < kFlight; ++u) v[u] = load<4>(start + (trip * kFlight + u) * 128);
#pragma unroll
    for (int u = 0; u < kFlight; ++u) {
#pragma unroll
      for (int e = 0; e < 4; ++e) largest = fmaxf(largest, v[u].value[e]);
    }
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, distance));
  }
  if (lane == 0) y[row] = largest;
}

}  // namespace opforge
