// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

namespace opforge {

constexpr int kThreads = 64;

inline int blocks_for(int n) { return (n + kThreads - 1) / kThreads; }

__global__ void increment(const float* x, float* y, int n) {
  const int i = blockIdx.x * kThreads + threadIdx.x;
  if (i < n) y[i] = x[i] + 1;
}

}  // namespace opforge
