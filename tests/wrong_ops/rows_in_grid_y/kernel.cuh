// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <opforge/core/launch.h>

namespace opforge {

constexpr int kThreads = 32;

template <class T>
__global__ void square(Matrix<const T> x, T* y, int64_t cols) {
  const int64_t row = blockIdx.y, col = blockIdx.x * int64_t(kThreads) + threadIdx.x;
  if (col >= cols) return;
  const auto value = widen(*x.at(row, col));
  y[row * cols + col] = narrow<T>(value * value);
}

}  // namespace opforge
