// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <opforge/core/reduce.h>

namespace opforge {

constexpr int kThreads = 128;

struct Flag {
  bool last;
};

__global__ void total(const float* x, float* partial, int* arrived, float* y, int n) {
  Flag& flag = shared<Flag>();
  const int i = blockIdx.x * kThreads + threadIdx.x;
  float sum = group_sum(i < n ? x[i] : 0.f, kThreads);
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = sum;
    __threadfence();
    flag.last = atomicAdd(arrived, 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (flag.last && threadIdx.x == 0) {
    sum = 0;
    for (int b = 0; b < gridDim.x; ++b) sum += partial[b];
    *y = sum;
  }
}

}  // namespace opforge
