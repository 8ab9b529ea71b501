// SPDX-License-Identifier: Apache-2.0
// Copies a matrix of any strides into rows that the copy engine can read: contiguous, and aligned
// to 16 bytes. Reads it once and writes it once. Includes no torch header.
#pragma once

#include <opforge/core/launch.h>
#include <opforge/core/layout.h>
#include <opforge/core/shared.h>
#include <opforge/core/vec.h>

#include <algorithm>

namespace opforge {

constexpr int kPackTile = 64, kPackThreads = 256;

// A block copies a tile through shared memory. It reads along the dim whose elements are closer to
// each other, and writes along the rows.
template <class T>
__global__ void __launch_bounds__(kPackThreads)
    pack(const Matrix<const T> from, T* to, int64_t to_stride, int64_t rows, int64_t cols) {
  struct Tile {
    T value[kPackTile][kPackTile + 1];
  };
  Tile& tile = shared<Tile>();
  const int64_t first_row = int64_t(blockIdx.y) * kPackTile;
  const int64_t first_col = int64_t(blockIdx.x) * kPackTile;
  const int lane = int(threadIdx.x) % kPackTile, step = kPackThreads / kPackTile;
  const bool along_rows = from.col_stride <= from.row_stride;
  for (int i = int(threadIdx.x) / kPackTile; i < kPackTile; i += step) {
    const int row = along_rows ? i : lane, col = along_rows ? lane : i;
    if (first_row + row < rows && first_col + col < cols) {
      tile.value[row][col] = *from.at(first_row + row, first_col + col);
    }
  }
  __syncthreads();
  for (int row = int(threadIdx.x) / kPackTile; row < kPackTile; row += step) {
    if (first_row + row < rows && first_col + lane < cols) {
      to[(first_row + row) * to_stride + first_col + lane] = tile.value[row][lane];
    }
  }
}

template <class T>
inline void launch_pack(const Matrix<const T>& from, T* to, int64_t to_stride, int64_t rows,
                        int64_t cols, cudaStream_t stream) {
  // A grid has at most 65535 rows of blocks.
  constexpr int64_t kMost = int64_t(65535) * kPackTile;
  for (int64_t row = 0; row < rows; row += kMost) {
    const int64_t some = std::min(kMost, rows - row);
    const dim3 grid(unsigned(ceil_div(cols, kPackTile)), unsigned(ceil_div(some, kPackTile)));
    launch(pack<T>, {grid, dim3(kPackThreads), stream},
           Matrix<const T>{from.at(row, 0), from.row_stride, from.col_stride}, to + row * to_stride,
           to_stride, some, cols);
  }
}

}  // namespace opforge
