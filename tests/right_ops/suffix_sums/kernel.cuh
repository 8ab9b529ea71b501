// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <opforge/core/launch.h>
#include <opforge/core/reduce.h>

namespace opforge {

constexpr int kRows = 4;  // of a block, a warp each

template <class A>
struct Strips {
  A of[kRows][kWarp];
};

// Tiles of 32 from the end of the row on. Each is turned round in the warp's own strip.
template <class T>
__global__ void __launch_bounds__(kRows* kWarp)
    suffix_sums(Matrix<const T> x, T* y, int64_t rows, int64_t cols) {
  using A = compute_t<T>;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int64_t row = int64_t(blockIdx.x) * kRows + warp;
  if (row >= rows) return;  // the whole warp, which nobody waits for
  A* strip = shared<Strips<A>>().of[warp];
  A after = 0;
  for (int64_t end = cols; end > 0; end -= kWarp) {
    const int64_t mine = end - kWarp + lane;
    strip[kWarp - 1 - lane] = mine >= 0 ? A(widen(*x.at(row, mine))) : A(0);
    __syncwarp();
    A sum = strip[lane];
    for (int step = 1; step < kWarp; step *= 2) {
      const A before = __shfl_up_sync(0xffffffffu, sum, step);
      if (lane >= step) sum += before;
    }
    sum += after;
    after = __shfl_sync(0xffffffffu, sum, kWarp - 1);
    if (end - 1 - lane >= 0) y[row * cols + end - 1 - lane] = narrow<T>(sum);
    __syncwarp();  // before the strip is filled again
  }
}

}  // namespace opforge
