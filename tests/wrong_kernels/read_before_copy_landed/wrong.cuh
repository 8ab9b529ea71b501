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

__global__ void twice(const float* x, float* y, int) {
  Stage& stage = shared<Stage>();
  const int first = blockIdx.x * kTile;
  if (threadIdx.x == 0) {
    init(stage.full, 1);
    publish_barriers();
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    arrive_expecting(stage.full, kBytes);
    bulk_copy(stage.value, x + first, kBytes, stage.full);
  }
  __syncthreads();  // Wrong: waits for threads; the copy may not have landed yet.
  for (int i = threadIdx.x; i < kTile; i += kThreads) y[first + i] = 2.f * stage.value[i];
  wait(stage.full, 0);
}

}  // namespace opforge
