// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <opforge/core/launch.h>
#include <opforge/core/reduce.h>

namespace opforge {

template <class T>
__global__ void __launch_bounds__(kWarp)
    count_above(Matrix<const T> x, int64_t* count, int64_t cols, compute_t<T> limit) {
  const int64_t row = blockIdx.x;
  int64_t found = 0;
  for (int64_t first = 0; first < cols; first += kWarp) {
    const int64_t j = first + threadIdx.x;
    const bool above = j < cols && widen(*x.at(row, j)) > limit;
    found += __popc(__ballot_sync(0xffffffffu, above));
  }
  if (threadIdx.x == 0) count[row] = found;
}

}  // namespace opforge
