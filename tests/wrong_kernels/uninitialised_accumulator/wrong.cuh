// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <opforge/core/shared.h>

namespace opforge {

constexpr int kThreads = 64, kBins = 8;

struct Counts {
  int bin[kBins];
};

__global__ void histogram(const float* x, float* y, int n) {
  Counts& counts = shared<Counts>();
  // Wrong: shared memory holds whatever the block before left there.
  for (int i = threadIdx.x; i < n; i += kThreads) {
    atomicAdd(&counts.bin[int(x[i] * kBins)], 1);
  }
  __syncthreads();
  if (threadIdx.x < kBins) y[threadIdx.x] = float(counts.bin[threadIdx.x]);
}

}  // namespace opforge
