// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <opforge/core/async.h>
#include <opforge/core/shared.h>

namespace opforge {

constexpr int kThreads = 64, kTile = 128, kBytes = kTile * 4;

struct Stage {
  alignas(16) float value[kTile];
  Barrier full;
};

__global__ void twice(const float* x, float* y, int n) {
  Stage& stage = shared<Stage>();
  if (threadIdx.x == 0) {
    init(stage.full, 1);
    publish_barriers();
  }
  __syncthreads();
  int phase = 0;
  for (int first = 0; first < n; first += kTile) {
    if (threadIdx.x == 0) {
      arrive_expecting(stage.full, kBytes);
      bulk_copy(stage.value, x + first, kBytes, stage.full);
    }
    wait(stage.full, phase);
    phase ^= 1;
    for (int i = threadIdx.x; i < kTile; i += kThreads) y[first + i] = 2.f * stage.value[i];
    __syncthreads();  // before it is filled again
  }
}

}  // namespace opforge
