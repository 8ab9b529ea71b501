// SPDX-License-Identifier: Apache-2.0
// A tile of a matrix of any strides, on its way from global to shared memory through the registers
// of a block's threads. Includes no torch header.
#pragma once

#include <opforge/core/layout.h>
#include <opforge/core/types.h>
#include <opforge/core/vec.h>

namespace opforge {

// Where a tile of Rows x Cols begins, and what there is of its matrix from there on.
template <class T>
struct TileSource {
  Matrix<const T> from;  // begins at the tile
  int64_t rows, cols;

  __device__ TileSource(const Matrix<const T>& x, int64_t rows, int64_t cols, int64_t row,
                        int64_t col)
      : from{x.at(row, col), x.row_stride, x.col_stride}, rows(rows - row), cols(cols - col) {}
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
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      int row, col;
      place(i, row, col);
      const int last_row = down ? row + kVec<T> - 1 : row,
                last_col = down ? col : col + kVec<T> - 1;
      if (aligned && last_row < x.rows && last_col < x.cols) {
        unit[i] = opforge::load<kVec<T>>(x.from.at(row, col));
      } else {
#pragma unroll
        for (int e = 0; e < kVec<T>; ++e) {
          const int r = down ? row + e : row, c = down ? col : col + e;
          unit[i].value[e] = r < x.rows && c < x.cols ? *x.from.at(r, c) : T{};
        }
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
