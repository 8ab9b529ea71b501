// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>
#include <opforge/core/vec.h>

namespace opforge {

using Four = Vec<float, 4>;

__global__ void row_sums(const float* x, float* y, int cols) {
  const float* row = x + threadIdx.x * cols;
  const int vectors = cols % 4 == 0 ? cols / 4 : 0;
  float sum = 0;
  for (int v = 0; v < vectors; ++v) {
    const Four four = reinterpret_cast<const Four*>(row)[v];
    sum += four.value[0] + four.value[1] + four.value[2] + four.value[3];
  }
  for (int c = 4 * vectors; c < cols; ++c) sum += row[c];
  y[threadIdx.x] = sum;
}

}  // namespace opforge
