// SPDX-License-Identifier: Apache-2.0
// Rung 1, naive: a thread for each element of y.
//
// Fewest bytes: a, b and y once, (m k + k n + m n) elements. Operations: 2 m n k.
// This rung asks for 2 m n k elements: each thread for a row of a and a column of b. Neighbouring
// threads have neighbouring rows. So the 32 lanes of a warp read 32 different rows at the same
// time, and write 32 of them: each lane touches a 32-byte sector of its own for one element.
#pragma once

#include <opforge/core/types.h>

#include "problem.h"

namespace opforge {

template <class T>
__global__ void __launch_bounds__(256) matmul_naive(const MatmulProblem<T> p) {
  const Place place(p, 32, 8);
  const int64_t row = place.row + threadIdx.x % 32, col = place.col + threadIdx.x / 32;
  if (row >= p.m || col >= p.n) return;
  const Matrix<const T> a = p.a_of(place.batch), b = p.b_of(place.batch);
  compute_t<T> sum = 0;
  for (int64_t i = 0; i < p.k; ++i) sum += widen(*a.at(row, i)) * widen(*b.at(i, col));
  *p.y_of(place.batch).at(row, col) = narrow<T>(sum);
}

template <class T>
inline void run_naive(const MatmulProblem<T>& p, cudaStream_t stream) {
  launch(matmul_naive<T>, {grid_of(p, 32, 8), dim3(256), stream}, p);
}

}  // namespace opforge
