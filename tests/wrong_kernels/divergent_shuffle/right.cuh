// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <opforge/core/reduce.h>

namespace opforge {

constexpr int kCols = 128, kWarps = kCols / kWarp;

struct Sums {
  float warp[kWarps];
  float mean;
};

__global__ void centre_rows(const float* x, float* y) {
  Sums& sums = shared<Sums>();
  const int i = blockIdx.x * kCols + threadIdx.x;
  const float own = warp_sum(x[i]);
  if (threadIdx.x % kWarp == 0) sums.warp[threadIdx.x / kWarp] = own;
  __syncthreads();
  if (threadIdx.x < kWarp) {
    float sum = threadIdx.x < kWarps ? sums.warp[threadIdx.x] : 0.f;
    for (int step = kWarps / 2; step > 0; step /= 2) {
      sum += __shfl_down_sync(0xffffffffu, sum, step);
    }
    if (threadIdx.x == 0) sums.mean = sum / kCols;
  }
  __syncthreads();
  y[i] = x[i] - sums.mean;
}

}  // namespace opforge
