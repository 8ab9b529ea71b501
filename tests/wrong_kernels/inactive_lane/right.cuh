// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

namespace opforge {

__global__ void warp_total(const float* x, float* y, int n) {
  const int lane = threadIdx.x;
  float sum = lane < n ? x[lane] : 0.f;
  for (int step = 16; step > 0; step /= 2) {
    sum += __shfl_down_sync(0xffffffffu, sum, step);
  }
  if (lane == 0) *y = sum;
}

}  // namespace opforge
