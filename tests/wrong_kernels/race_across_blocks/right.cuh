// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <opforge/core/reduce.h>

namespace opforge {

constexpr int kThreads = 128;

__global__ void total(const float* x, float* y, int n) {
  const int i = blockIdx.x * kThreads + threadIdx.x;
  const float sum = group_sum(i < n ? x[i] : 0.f, kThreads);
  if (threadIdx.x == 0) atomicAdd(y, sum);
}

}  // namespace opforge
