// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <opforge/core/index.h>
#include <opforge/core/launch.h>

namespace opforge {

constexpr int kThreads = 128;

template <class T>
__global__ void multiply(const T* x, T* y, int64_t n, Walk<uint64_t, 2> walk, double scale) {
  const int64_t i = blockIdx.x * int64_t(kThreads) + threadIdx.x;
  uint64_t inner;
  if (i < n) {
    const int offset = int(walk.offset(1, uint64_t(i), inner));  // wrong: 64 bits are needed
    y[i] = narrow<T>(widen(x[offset]) * compute_t<T>(scale));
  }
}

}  // namespace opforge
