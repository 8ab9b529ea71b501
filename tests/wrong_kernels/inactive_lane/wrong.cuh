// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

namespace opforge {

__global__ void warp_total(const float* x, float* y, int n) {
  const int lane = threadIdx.x;
  // Wrong: lanes that left have no value to give.
  if (lane >= n) return;
  float sum = x[lane];
  for (int step = 16; step > 0; step /= 2) {
    sum += __shfl_down_sync(0xffffffffu, sum, step);
  }
  if (lane == 0) *y = sum;
}

}  // namespace opforge
