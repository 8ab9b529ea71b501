// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <opforge/core/shared.h>

namespace opforge {

constexpr int kThreads = 64;

struct Tile {
  float value[kThreads];
};

__global__ void differences(const float* x, float* y, int n) {
  Tile& tile = shared<Tile>();
  const int i = blockIdx.x * kThreads + threadIdx.x;
  const float own = i < n ? x[i] : 0.f;
  tile.value[threadIdx.x] = own;
  // Wrong: a neighbour may not have written its element yet.
  float left = 0.f;
  if (threadIdx.x > 0) {
    left = tile.value[threadIdx.x - 1];
  } else if (i > 0) {
    left = x[i - 1];
  }
  if (i < n) y[i] = own - left;
}

}  // namespace opforge
