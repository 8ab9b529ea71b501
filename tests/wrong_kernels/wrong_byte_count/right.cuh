// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <opforge/core/async.h>
#include <opforge/core/shared.h>

namespace opforge {

constexpr int kThreads = 64, kTile = 128;

struct Stage {
  alignas(16) float value[kTile];
  Barrier full;
};

__global__ void twice(const float* x, float* y, int n) {
  Stage& stage = shared<Stage>();
  const int first = blockIdx.x * kTile, count = min(kTile, n - first);
  if (threadIdx.x == 0) {
    init(stage.full, 1);
    publish_barriers();
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    arrive_expecting(stage.full, count * 4);
    bulk_copy(stage.value, x + first, count * 4, stage.full);
  }
  wait(stage.full, 0);
  for (int i = threadIdx.x; i < count; i += kThreads) y[first + i] = 2.f * stage.value[i];
}

}  // namespace opforge
