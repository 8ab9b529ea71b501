// SPDX-License-Identifier: Apache-2.0
// Rung 3, tiled: what a block needs several times is kept in shared memory.
//
// Fewest bytes: a, b and y once. Operations: 2 m n k.
// This rung moves 2 m n k / 32 elements from L2: a block makes 32 x 32 elements of y, and reads 32
// elements of a and 32 of b for each inner index. From shared memory it still reads 2 elements for
// every multiplication and addition, and that is now the limit.
#pragma once

#include <opforge/core/shared.h>
#include <opforge/core/types.h>

#include "problem.h"

namespace opforge {

constexpr int kTiledSide = 32;

template <class T>
__global__ void __launch_bounds__(kTiledSide* kTiledSide) matmul_tiled(const MatmulProblem<T> p) {
  struct Tiles {
    T a[kTiledSide][kTiledSide + 1], b[kTiledSide][kTiledSide + 1];  // + 1: other banks
  };
  Tiles& s = shared<Tiles>();
  const Place place(p, kTiledSide, kTiledSide);
  const int i = int(threadIdx.x) / kTiledSide, j = int(threadIdx.x) % kTiledSide;
  const Matrix<const T> a = p.a_of(place.batch), b = p.b_of(place.batch);
  // Along the dim whose elements are beside each other, so that the reads are coalesced.
  const bool turn_a = a.row_stride < a.col_stride, turn_b = b.row_stride < b.col_stride;
  const int a_row = turn_a ? j : i, a_col = turn_a ? i : j;
  const int b_row = turn_b ? j : i, b_col = turn_b ? i : j;
  compute_t<T> sum = 0;
  for (int64_t first = 0; first < p.k; first += kTiledSide) {
    const bool in_a = place.row + a_row < p.m && first + a_col < p.k;
    const bool in_b = first + b_row < p.k && place.col + b_col < p.n;
    s.a[a_row][a_col] = in_a ? *a.at(place.row + a_row, first + a_col) : T{};
    s.b[b_row][b_col] = in_b ? *b.at(first + b_row, place.col + b_col) : T{};
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kTiledSide; ++k) sum += widen(s.a[i][k]) * widen(s.b[k][j]);
    __syncthreads();
  }
  const int64_t row = place.row + i, col = place.col + j;
  if (row < p.m && col < p.n) *p.y_of(place.batch).at(row, col) = narrow<T>(sum);
}

template <class T>
inline void run_tiled(const MatmulProblem<T>& p, cudaStream_t stream) {
  launch(matmul_tiled<T>,
         {grid_of(p, kTiledSide, kTiledSide), dim3(kTiledSide * kTiledSide), stream}, p);
}

}  // namespace opforge
