// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <opforge/core/launch.h>
#include <opforge/core/types.h>

namespace opforge {

// Whether a at i comes before b at j: NaN are the largest, and of equal ones the first counts.
template <class A>
__device__ bool precedes(A a, int64_t i, A b, int64_t j) {
  if (a != a || b != b) return a != a && (b == b || i < j);
  return a > b || (a == b && i < j);
}

template <class T>
__global__ void __launch_bounds__(32) row_argmax(Matrix<const T> x, int64_t* index, int64_t cols) {
  const int64_t row = blockIdx.x;
  // Lanes without an element of their own start at the first one, which changes nothing.
  int64_t best = threadIdx.x < cols ? int64_t(threadIdx.x) : 0;
  compute_t<T> most = widen(*x.at(row, best));
  for (int64_t j = best + 32; j < cols; j += 32) {
    const compute_t<T> v = widen(*x.at(row, j));
    if (precedes(v, j, most, best)) most = v, best = j;
  }
  for (int step = 16; step > 0; step /= 2) {
    const compute_t<T> v = __shfl_xor_sync(0xffffffffu, most, step);
    const long long j = __shfl_xor_sync(0xffffffffu, (long long)best, step);
    if (precedes(v, int64_t(j), most, best)) most = v, best = j;
  }
  if (threadIdx.x == 0) index[row] = best;
}

}  // namespace opforge
