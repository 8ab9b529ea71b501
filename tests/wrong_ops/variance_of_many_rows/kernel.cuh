// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <opforge/core/launch.h>
#include <opforge/core/reduce.h>

namespace opforge {

constexpr int kVarianceThreads = 256;

// A block to a row.
template <class T>
__global__ void __launch_bounds__(kVarianceThreads)
    row_variance(Matrix<const T> x, T* y, int64_t cols, bool at_once) {
  using A = compute_t<T>;
  const int64_t row = blockIdx.x;
  const auto mean_of = [&](auto&& f) {
    A own = 0;
    for (int64_t col = threadIdx.x; col < cols; col += kVarianceThreads) {
      own += f(widen(*x.at(row, col)));
    }
    __syncthreads();  // the last sum has been read
    return group_sum(own, kVarianceThreads) / A(cols);
  };
  const A mean = mean_of([](A v) { return v; });
  const A squares = at_once ? mean_of([](A v) { return v * v; }) - mean * mean  // wrong: cancels
                            : mean_of([mean](A v) { return (v - mean) * (v - mean); });
  if (threadIdx.x == 0) y[row] = narrow<T>(squares);
}

}  // namespace opforge
