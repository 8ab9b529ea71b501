// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <opforge/core/shared.h>

namespace opforge {

constexpr int kThreads = 64;

struct Row {
  float value[kThreads];
};

__global__ void centre_rows(const float* x, float* y, int cols) {
  Row& row = shared<Row>();
  const int i = blockIdx.x * cols + threadIdx.x;
  const bool exists = threadIdx.x < cols;
  if (exists) row.value[threadIdx.x] = x[i];
  __syncthreads();
  float sum = 0;
  for (int c = 0; c < cols; ++c) sum += row.value[c];
  if (exists) y[i] = x[i] - sum / cols;
}

}  // namespace opforge
