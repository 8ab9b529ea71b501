// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

namespace opforge {

constexpr int kThreads = 64;

__global__ void add_bias(const float* x, const float* bias, float* y, int n, int cols) {
  const int i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= n) return;
  const float b = bias[i % cols];
  y[i] = x[i] + b;
}

}  // namespace opforge
