// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <opforge/core/launch.h>

namespace opforge {

template <class T>
__global__ void __launch_bounds__(64)
    serial_sum(Matrix<const T> x, T* y, int64_t rows, int64_t cols) {
  const int64_t row = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  compute_t<T> sum = 0;
  for (int64_t j = 0; j < cols; ++j) sum += widen(*x.at(row, j));
  y[row] = narrow<T>(sum);
}

}  // namespace opforge
