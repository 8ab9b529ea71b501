// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <opforge/core/async.h>
#include <opforge/core/shared.h>

namespace opforge {

constexpr int kThreads = 64, kTile = 128, kBytes = kTile * 4, kStages = 2;

struct Ring {
  alignas(16) float value[kStages][kTile];
  Barrier full[kStages];
};

__device__ void fill(Ring& ring, int stage, const float* x) {
  arrive_expecting(ring.full[stage], kBytes);
  bulk_copy(ring.value[stage], x, kBytes, ring.full[stage]);
}

__global__ void twice(const float* x, float* y, int n) {
  Ring& ring = shared<Ring>();
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) init(ring.full[stage], 1);
    publish_barriers();
    for (int stage = 0; stage < kStages && stage * kTile < n; ++stage) {
      fill(ring, stage, x + stage * kTile);
    }
  }
  __syncthreads();
  for (int k = 0, first = 0; first < n; ++k, first += kTile) {
    const int stage = k % kStages, next = first + kStages * kTile;
    wait(ring.full[stage], k / kStages % 2);
    for (int i = threadIdx.x; i < kTile; i += kThreads) y[first + i] = 2.f * ring.value[stage][i];
    // Wrong: the others may still read the stage that is filled again here.
    if (threadIdx.x == 0 && next < n) fill(ring, stage, x + next);
  }
}

}  // namespace opforge
