// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <opforge/core/launch.h>
#include <opforge/core/reduce.h>

namespace opforge {

template <class T>
__global__ void __launch_bounds__(1024) row_sum(Matrix<const T> x, T* y, int64_t cols) {
  const int64_t row = blockIdx.x, col = threadIdx.x;
  const compute_t<T> own = col < cols ? widen(*x.at(row, col)) : 0;
  const compute_t<T> sum = group_sum(own, int(blockDim.x));
  if (threadIdx.x == 0) y[row] = narrow<T>(sum);
}

}  // namespace opforge
