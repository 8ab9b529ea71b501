// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <opforge/core/launch.h>

namespace opforge {

constexpr int kThreads = 64;

__global__ void copied(Matrix<const float> x, float* workspace, int64_t rows, int64_t cols) {
  const int64_t i = blockIdx.x * int64_t(kThreads) + threadIdx.x;
  if (i < rows * cols) workspace[i] = *x.at(i / cols, i % cols);
}

__global__ void doubled(const float* workspace, float* y, int64_t n) {
  const int64_t i = blockIdx.x * int64_t(kThreads) + threadIdx.x;
  if (i >= n) return;
  volatile float ahead = workspace[i + 1];  // wrong: the last one has none after it
  (void)ahead;
  y[i] = workspace[i] + workspace[i];
}

}  // namespace opforge
