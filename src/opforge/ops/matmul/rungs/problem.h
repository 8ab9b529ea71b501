// SPDX-License-Identifier: Apache-2.0
// y = a b as the rungs get it, and which tile of y a block makes. Includes no torch header.
#pragma once

#include <opforge/core/launch.h>
#include <opforge/core/layout.h>

#include <climits>

namespace opforge {

// Matrices of any strides, `batches` of each. y is contiguous.
template <class T>
struct MatmulProblem {
  int64_t m, n, k, batches;
  Matrix<const T> a, b;  // m x k and k x n
  int64_t a_batch_stride, b_batch_stride;
  T* y;

  __device__ __forceinline__ Matrix<const T> a_of(int64_t batch) const {
    return {a.data + batch * a_batch_stride, a.row_stride, a.col_stride};
  }
  __device__ __forceinline__ Matrix<const T> b_of(int64_t batch) const {
    return {b.data + batch * b_batch_stride, b.row_stride, b.col_stride};
  }
  __device__ __forceinline__ Matrix<T> y_of(int64_t batch) const {
    return {y + batch * m * n, n, 1};
  }
};

// A tile of `rows` x `cols` elements of y for each block. A problem has m, n and batches.
template <class Problem>
inline dim3 grid_of(const Problem& p, int rows, int cols) {
  const int64_t blocks = ceil_div(p.m, rows) * ceil_div(p.n, cols) * p.batches;
  if (blocks > INT_MAX) fail("matmul: a product of ", blocks, " tiles is too large");
  return dim3(unsigned(blocks));
}

// Where the tile of this block begins. Tiles that run at the same time share rows of a and columns
// of b: they come in bands of `kBand` rows of tiles, so that L2 holds what they share.
struct Place {
  int64_t batch, row, col;

  template <class Problem>
  __device__ Place(const Problem& p, int rows, int cols) {
    constexpr int64_t kBand = 8;
    const int64_t down = ceil_div(p.m, rows), across = ceil_div(p.n, cols);
    batch = int64_t(blockIdx.x) / (down * across);
    const int64_t tile = int64_t(blockIdx.x) - batch * down * across;
    const int64_t first = tile / (kBand * across) * kBand;  // row of tiles, of the band
    const int64_t height = down - first < kBand ? down - first : kBand;
    const int64_t in_band = tile - first * across;
    row = (first + in_band % height) * rows;
    col = in_band / height * cols;
  }
};

}  // namespace opforge
