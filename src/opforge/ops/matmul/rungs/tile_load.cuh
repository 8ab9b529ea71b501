// SPDX-License-Identifier: Apache-2.0
// A tile of a matrix of any strides, on its way from global to shared memory through the registers
// of a block's threads. Includes no torch header.
#pragma once

#include <opforge/core/layout.h>
#include <opforge/core/types.h>
#include <opforge/core/vec.h>

namespace opforge {

// Where a tile begins, and how many rows and columns there are of its matrix from there on: exact
// up to the size of a tile.
template <class T>
struct TileSource {
  static constexpr int64_t kMost = 1024;
  Matrix<const T> from;  // begins at the tile
  int rows, cols;

  __device__ TileSource(const Matrix<const T>& x, int64_t rows, int64_t cols, int64_t row,
                        int64_t col)
      : from{x.at(row, col), x.row_stride, x.col_stride},
        rows(int(rows - row < kMost ? rows - row : kMost)),
        cols(int(cols - col < kMost ? cols - col : kMost)) {}
};

// Each thread has units of 16 bytes along the dim that is contiguous.
template <class T, int Rows, int Cols, int Threads>
struct TileLoad {
  static constexpr int kUnits = Rows * Cols / kVec<T> / Threads;
  static_assert(kUnits * kVec<T> * Threads == Rows * Cols);
  Vec<T, kVec<T>> unit[kUnits];
  bool down;  // columns are contiguous, not rows

  // Whether units can be read as vectors, wherever they begin.
  static __device__ bool is_aligned(const Matrix<const T>& x, int64_t batch_stride) {
    const bool by_row = x.col_stride == 1;
    const int64_t other = by_row ? x.row_stride : x.col_stride;
    return (by_row || x.row_stride == 1) && other % kVec<T> == 0 && batch_stride % kVec<T> == 0 &&
           reinterpret_cast<uintptr_t>(x.data) % 16 == 0;
  }

  __device__ __forceinline__ void place(int i, int& row, int& col) const {
    const int number = i * Threads + int(threadIdx.x);
    constexpr int kAcross = Cols / kVec<T>, kDown = Rows / kVec<T>;
    row = down ? number % kDown * kVec<T> : number / kAcross;
    col = down ? number / kDown : number % kAcross * kVec<T>;
  }

  // What is beyond the matrix is zero.
  __device__ __forceinline__ void load(const TileSource<T>& x, bool aligned) {
    down = x.from.col_stride != 1 && x.from.row_stride == 1;
    const int64_t step = down ? x.from.row_stride : x.from.col_stride;
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      int row, col;
      place(i, row, col);
      const T* const at = x.from.at(row, col);
      int there = down ? x.rows - row : x.cols - col;
      if (down ? col >= x.cols : row >= x.rows) there = 0;
      if (aligned && there >= kVec<T>) {
        unit[i] = opforge::load<kVec<T>>(at);
      } else {
#pragma unroll
        for (int e = 0; e < kVec<T>; ++e) unit[i].value[e] = e < there ? at[e * step] : T{};
      }
    }
  }

  // Calls f(row, col, element) for all elements of this thread.
  template <class F>
  __device__ __forceinline__ void each(const F& f) const {
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      int row, col;
      place(i, row, col);
#pragma unroll
      for (int e = 0; e < kVec<T>; ++e) {
        f(down ? row + e : row, down ? col : col + e, unit[i].value[e]);
      }
    }
  }
};

}  // namespace opforge
