// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <opforge/core/async.h>
#include <opforge/core/cluster.h>
#include <opforge/core/shared.h>

namespace opforge {

constexpr int kThreads = 64, kCluster = 4;

struct Mail {
  Barrier full;
  float first[kCluster];
};

__global__ void add_firsts(const float* x, float* y) {
  Mail& mail = shared<Mail>();
  const int i = blockIdx.x * kThreads + threadIdx.x;
  if (threadIdx.x == 0) {
    init(mail.full, 1);
    publish_barriers();
  }
  cluster_arrive_relaxed();
  cluster_wait();
  if (threadIdx.x == 0) {
    arrive_expecting(mail.full, sizeof mail.first);
    for (int rank = 0; rank < kCluster; ++rank) {
      send(x[i], mail.first[cluster_rank()], mail.full, rank);
    }
  }
  cluster_sync();  // Wrong: waits for threads; what they sent may not have landed yet.
  float sum = x[i];
  for (int rank = 0; rank < kCluster; ++rank) sum += mail.first[rank];
  y[i] = sum;
  wait(mail.full, 0);
}

}  // namespace opforge
