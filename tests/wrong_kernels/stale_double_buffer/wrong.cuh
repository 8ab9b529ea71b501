// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <opforge/core/shared.h>

namespace opforge {

constexpr int kTile = 32;

struct Keys {
  float half[2][kTile];
};

// The first warp fetches the keys of the next tile while the second warp uses those of this one.
__global__ void distances(const float* query, const float* key, float* y, int tiles) {
  Keys& keys = shared<Keys>();
  const int lane = threadIdx.x % kTile;
  const bool fetches = threadIdx.x < kTile;
  if (fetches) keys.half[0][lane] = key[lane];
  __syncthreads();
  float sum = 0;
  for (int tile = 0; tile < tiles; ++tile) {
    const int now = tile % 2, next = 1 - now;
    if (fetches) {
      if (tile + 1 < tiles) keys.half[next][lane] = key[(tile + 1) * kTile + lane];
    } else {
      // Wrong: this half is being filled, and holds old keys until it is.
      for (int k = 0; k < kTile; ++k) sum += fabsf(query[lane] - keys.half[next][k]);
    }
    __syncthreads();
  }
  if (!fetches) y[lane] = sum;
}

}  // namespace opforge
