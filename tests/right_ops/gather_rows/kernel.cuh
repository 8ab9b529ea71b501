// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <opforge/core/launch.h>

namespace opforge {

constexpr int kThreads = 64;

template <class T, class I>
__global__ void __launch_bounds__(kThreads)
    gather_rows(Matrix<const T> table, Matrix<const I> index, T* y, int64_t rows, int64_t cols) {
  const int64_t chosen = *index.at(blockIdx.x, 0);
  const bool valid = chosen >= 0 && chosen < rows;
  for (int64_t j = threadIdx.x; j < cols; j += kThreads) {
    y[blockIdx.x * cols + j] = valid ? *table.at(chosen, j) : narrow<T>(compute_t<T>(0));
  }
}

}  // namespace opforge
