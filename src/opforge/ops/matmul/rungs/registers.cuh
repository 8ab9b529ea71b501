// SPDX-License-Identifier: Apache-2.0
// Rung 4, registers: what a thread needs several times is kept in registers.
//
// Fewest bytes: a, b and y once. Operations: 2 m n k.
// This rung moves 2 m n k / 128 elements from L2: a block makes 128 x 128 elements of y (64 x 64 of
// double). A thread makes 8 x 8 of them (4 x 4), so that 16 elements from shared memory serve 64
// multiplications and additions. It reads global memory 16 bytes at a time, and the next tile while
// it multiplies this one: shared memory has room for two.
#pragma once

#include <opforge/core/shared.h>

#include "problem.h"
#include "tile_load.cuh"

namespace opforge {

template <class T>
struct RegisterTile {
  using A = compute_t<T>;
  static constexpr int kThreads = 256, kSide = sizeof(T) == 8 ? 64 : 128, kInner = 16;
  static constexpr int kOwn = kSide / 16;  // rows and columns of a thread
  static constexpr int kPart = 4;          // of them are beside each other

  // Widened, since each element is used many times. Rows of a become columns here: a thread reads
  // its elements of one inner index as vectors.
  struct alignas(16) Buffer {
    A a[kInner][kSide + 4], b[kInner][kSide + 4];
  };

  // The i-th row or column of a thread that is `at`-th of 16.
  static __device__ __forceinline__ int place(int at, int i) {
    return i / kPart * (16 * kPart) + at * kPart + i % kPart;
  }

  static __device__ __forceinline__ void read(const A* row, int at, A (&to)[kOwn]) {
#pragma unroll
    for (int i = 0; i < kOwn; i += kVec<A>) {
      const Vec<A, kVec<A>> v = load<kVec<A>>(row + place(at, i));
#pragma unroll
      for (int e = 0; e < kVec<A>; ++e) to[i + e] = v.value[e];
    }
  }
};

template <class T>
__global__ void __launch_bounds__(RegisterTile<T>::kThreads)
    matmul_registers(const MatmulProblem<T> p) {
  using Tile = RegisterTile<T>;
  using A = typename Tile::A;
  constexpr int kSide = Tile::kSide, kInner = Tile::kInner, kOwn = Tile::kOwn;
  struct Buffers {
    typename Tile::Buffer one[2];
  };
  Buffers& s = shared<Buffers>();
  const Place place(p, kSide, kSide);
  const Matrix<const T> a = p.a_of(place.batch), b = p.b_of(place.batch);
  TileLoad<T, kSide, kInner, Tile::kThreads> of_a;
  TileLoad<T, kInner, kSide, Tile::kThreads> of_b;
  const bool aligned_a = of_a.is_aligned(p.a, p.a_batch_stride);
  const bool aligned_b = of_b.is_aligned(p.b, p.b_batch_stride);

  const auto fetch = [&](int64_t first) {
    of_a.load({a, p.m, p.k, place.row, first}, aligned_a);
    of_b.load({b, p.k, p.n, first, place.col}, aligned_b);
  };
  const auto put = [&](typename Tile::Buffer& to) {
    of_a.each([&](int row, int k, T x) { to.a[k][row] = widen(x); });
    of_b.each([&](int k, int col, T x) { to.b[k][col] = widen(x); });
  };

  A sums[kOwn][kOwn] = {};
  const int down = int(threadIdx.x) / 16, across = int(threadIdx.x) % 16;
  fetch(0);
  put(s.one[0]);
  __syncthreads();
  int now = 0;
  for (int64_t first = 0; first < p.k; first += kInner, now ^= 1) {
    const bool more = first + kInner < p.k;
    if (more) fetch(first + kInner);
#pragma unroll
    for (int k = 0; k < kInner; ++k) {
      A x[kOwn], y[kOwn];
      Tile::read(s.one[now].a[k], down, x);
      Tile::read(s.one[now].b[k], across, y);
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
#pragma unroll
        for (int j = 0; j < kOwn; ++j) sums[i][j] += x[i] * y[j];
      }
    }
    if (more) put(s.one[now ^ 1]);
    __syncthreads();
  }

  const Matrix<T> y = p.y_of(place.batch);
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int64_t row = place.row + Tile::place(down, i);
    if (row >= p.m) continue;
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
      const int64_t col = place.col + Tile::place(across, j);
      if (col < p.n) *y.at(row, col) = narrow<T>(sums[i][j]);
    }
  }
}

template <class T>
inline void run_registers(const MatmulProblem<T>& p, cudaStream_t stream) {
  using Tile = RegisterTile<T>;
  launch(matmul_registers<T>, {grid_of(p, Tile::kSide, Tile::kSide), dim3(Tile::kThreads), stream},
         p);
}

}  // namespace opforge
