// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <opforge/core/shared.h>

namespace opforge {

constexpr int kThreads = 64;

struct Tile {
  float value[kThreads];
};

__global__ void reverse_tiles(const float* x, float* y, int n) {
  Tile& tile = shared<Tile>();
  for (int first = blockIdx.x * kThreads; first < n; first += gridDim.x * kThreads) {
    const int i = first + threadIdx.x;
    const int last = min(kThreads, n - first) - 1;
    if (i < n) tile.value[threadIdx.x] = x[i];
    __syncthreads();
    if (i < n) y[i] = tile.value[last - threadIdx.x];
    __syncthreads();  // the next tile goes to the same place
  }
}

}  // namespace opforge
