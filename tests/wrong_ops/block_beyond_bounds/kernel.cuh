// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <opforge/core/launch.h>
#include <opforge/core/shared.h>
#include <opforge/core/types.h>

namespace opforge {

constexpr int kThreads = 512;

template <class T>
struct Largest {
  compute_t<T> of[1024];
};

template <class T>
__global__ void __launch_bounds__(kThreads) row_max(Matrix<const T> x, T* y, int64_t cols) {
  Largest<T>& largest = shared<Largest<T>>();
  const int64_t row = blockIdx.x;
  const int threads = blockDim.x, i = threadIdx.x;
  const auto greater = [](auto a, auto b) { return a > b || a != a ? a : b; };
  compute_t<T> own = widen(*x.at(row, 0));
  for (int64_t j = i; j < cols; j += threads) own = greater(widen(*x.at(row, j)), own);
  largest.of[i] = own;
  for (int half = threads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (i < half) largest.of[i] = greater(largest.of[i + half], largest.of[i]);
  }
  if (i == 0) y[row] = narrow<T>(largest.of[0]);
}

}  // namespace opforge
