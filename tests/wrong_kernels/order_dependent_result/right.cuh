// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <opforge/core/reduce.h>

namespace opforge {

constexpr int kCols = 128;

__global__ void row_sums(const float* x, float* y) {
  const float own = x[blockIdx.x * kCols + threadIdx.x];
  const float sum = group_sum(own, kCols);
  if (threadIdx.x == 0) y[blockIdx.x] = sum;
}

}  // namespace opforge
