// SPDX-License-Identifier: Apache-2.0
// Adds up what blocks have found for each column, and rounds once. Includes no torch header.
#pragma once

#include <opforge/core/launch.h>
#include <opforge/core/shared.h>
#include <opforge/core/types.h>

namespace opforge {

// `sums` has a row of `cols` columns for each of `parts` blocks. A thread goes down a column, every
// `height` rows, and the threads of a column meet in shared memory, in a fixed order. With a second
// grid row also the sums `between` elements further on, into `other`: weights and biases together.
template <class A, class Out>
__global__ void __launch_bounds__(1024)
    finish_sums(const A* sums, int64_t between, int parts, int64_t cols, Out* out, Out* other) {
  constexpr int kAcross = 32;
  struct Stack {
    A sum[32][kAcross + 1];
  };
  Stack& stack = shared<Stack>();
  const int across = threadIdx.x % kAcross, down = threadIdx.x / kAcross;
  const int height = blockDim.x / kAcross;
  const int64_t col = int64_t(blockIdx.x) * kAcross + across;
  if (blockIdx.y == 1) {
    sums += between;
    out = other;
  }
  A sum = A(0);
  await_previous();
  if (col < cols) {
    constexpr int kFlying = 8;  // loads, the last of which may find nothing
    for (int part = down; part < parts; part += kFlying * height) {
      A some[kFlying];
#pragma unroll
      for (int i = 0; i < kFlying; ++i) {
        const int one = part + i * height;
        some[i] = one < parts ? sums[one * cols + col] : A(0);
      }
#pragma unroll
      for (const A& one : some) sum += one;
    }
  }
  stack.sum[down][across] = sum;
  __syncthreads();
  if (down == 0 && col < cols) {
    for (int i = 1; i < height; ++i) sum += stack.sum[i][across];
    out[col] = narrow<Out>(compute_t<Out>(sum));
  }
}

}  // namespace opforge
