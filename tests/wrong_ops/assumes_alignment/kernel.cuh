// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <opforge/core/index.h>
#include <opforge/core/launch.h>
#include <opforge/core/vec.h>

namespace opforge {

constexpr int kThreads = 128;

// A thread makes the elements of one vector.
template <class T>
__global__ void multiply(const T* x, T* y, int64_t n, Walk<uint64_t, 2> walk, double scale,
                         bool vectors) {
  constexpr int N = kVec<T>;
  const int64_t first = (blockIdx.x * int64_t(kThreads) + threadIdx.x) * N;
  if (first >= n) return;
  Vec<T, N> in;
  const int count = int(min(n - first, int64_t(N)));
  uint64_t inner;
  if (vectors && count == N) {
    in = *reinterpret_cast<const Vec<T, N>*>(x + first);
  } else {
    for (int e = 0; e < count; ++e) {
      in.value[e] = x[walk.offset(1, uint64_t(first + e), inner)];
    }
  }
  for (int e = 0; e < count; ++e) {
    y[first + e] = narrow<T>(widen(in.value[e]) * compute_t<T>(scale));
  }
}

}  // namespace opforge
