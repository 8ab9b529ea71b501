// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <opforge/core/index.h>
#include <opforge/core/launch.h>

namespace opforge {

constexpr int kThreads = 128;

template <class T>
__global__ void twice(const T* x, T* y, int64_t n) {
  const int64_t i = blockIdx.x * int64_t(kThreads) + threadIdx.x;
  if (i < n) y[i] = narrow<T>(widen(x[i]) * 2);
}

}  // namespace opforge
