// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <opforge/core/launch.h>
#include <opforge/core/reduce.h>

namespace opforge {

constexpr int kThreads = 128;

__global__ void block_sums(const float* x, float* y, int n) {
  const int i = blockIdx.x * kThreads + threadIdx.x;
  await_previous();
  const float own = i < n ? x[i] : 0.f;
  release_next();
  const float sum = group_sum(own, kThreads);
  if (threadIdx.x == 0) y[blockIdx.x] = sum;
}

}  // namespace opforge
