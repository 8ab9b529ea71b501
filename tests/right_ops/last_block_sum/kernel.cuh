// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <opforge/core/launch.h>
#include <opforge/core/reduce.h>

namespace opforge {

constexpr int kThreads = 128;

struct Turn {
  bool last;
};

template <class T>
__global__ void __launch_bounds__(kThreads)
    last_block_sum(Matrix<const T> x, T* y, compute_t<T>* partial, int* arrived, int64_t cols,
                   int64_t count) {
  using A = compute_t<T>;
  A sum = 0;
  for (int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x; i < count;
       i += int64_t(gridDim.x) * kThreads) {
    sum += widen(*x.at(i / cols, i % cols));
  }
  sum = group_sum(sum, kThreads);
  Turn& turn = shared<Turn>();
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = sum;
    __threadfence();  // the sum is there before it is counted
    turn.last = atomicAdd(arrived, 1) == int(gridDim.x) - 1;
  }
  __syncthreads();
  if (!turn.last || threadIdx.x != 0) return;
  __threadfence();  // all have been counted before their sums are read
  A total = 0;
  for (unsigned b = 0; b < gridDim.x; ++b) total += partial[b];
  *y = narrow<T>(total);
}

}  // namespace opforge
