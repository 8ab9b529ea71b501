// SPDX-License-Identifier: Apache-2.0
// Rung 2, coalesced: neighbouring threads have neighbouring columns.
//
// Fewest bytes: a, b and y once. Operations: 2 m n k.
// This rung still asks for 2 m n k elements. But the lanes of a warp now have one row of y: they
// read the same element of a, which is one sector for all, and 32 elements of b beside each other.
// A request for b is 4 sectors of floats instead of 32.
#pragma once

#include <opforge/core/types.h>

#include "problem.h"

namespace opforge {

template <class T>
__global__ void __launch_bounds__(256) matmul_coalesced(const MatmulProblem<T> p) {
  const Place place(p, 8, 32);
  const int64_t row = place.row + threadIdx.x / 32, col = place.col + threadIdx.x % 32;
  if (row >= p.m || col >= p.n) return;
  const Matrix<const T> a = p.a_of(place.batch), b = p.b_of(place.batch);
  compute_t<T> sum = 0;
  for (int64_t i = 0; i < p.k; ++i) sum += widen(*a.at(row, i)) * widen(*b.at(i, col));
  *p.y_of(place.batch).at(row, col) = narrow<T>(sum);
}

template <class T>
inline void run_coalesced(const MatmulProblem<T>& p, cudaStream_t stream) {
  launch(matmul_coalesced<T>, {grid_of(p, 8, 32), dim3(256), stream}, p);
}

}  // namespace opforge
