// SPDX-License-Identifier: Apache-2.0
// wmma, beside rung 5: tensor cores by CUDA's own interface, for float16 and bfloat16.
//
// Fewest bytes: a, b and y once. Operations: 2 m n k.
// This rung moves 2 m n k / 128 elements from L2, as rung 4 does. A warp makes 64 x 32 elements of
// y. For 16 inner indices it reads 1536 elements from shared memory, and does 32768 multiplications
// and additions with 8 instructions. What is simple here is what rung 5 does better: tiles come
// through registers, nothing is read ahead, and rows are padded instead of swizzled.
#pragma once

#include <opforge/core/shared.h>
#include <opforge/core/wmma.h>

#include "problem.h"
#include "tile_load.cuh"

namespace opforge {

struct WmmaTile {
  static constexpr int kSide = 128, kInner = 32, kThreads = 256;
  static constexpr int kDown = 4, kAcross = 2;  // 16 x 16 products of a warp: 64 x 32
  static constexpr int kPad = 8;                // elements: rows begin in other banks
};

template <class T>
__global__ void __launch_bounds__(WmmaTile::kThreads) matmul_wmma(const MatmulProblem<T> p) {
#if defined(OPFORGE_SIM) || !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800  // bfloat16 needs it
  using Tile = WmmaTile;
  constexpr int kSide = Tile::kSide, kInner = Tile::kInner;
  constexpr int kStrideA = kInner + Tile::kPad, kStrideB = kSide + Tile::kPad;
  struct alignas(32) Tiles {
    T a[kSide][kStrideA], b[kInner][kStrideB];
    alignas(32) float sums[Tile::kThreads / 32][kWmma][kWmma];
  };
  Tiles& s = shared<Tiles>();
  const Place place(p, kSide, kSide);
  const Matrix<const T> a = p.a_of(place.batch), b = p.b_of(place.batch);
  TileLoad<T, kSide, kInner, Tile::kThreads> of_a;
  TileLoad<T, kInner, kSide, Tile::kThreads> of_b;
  const bool aligned_a = of_a.is_aligned(p.a, p.a_batch_stride);
  const bool aligned_b = of_b.is_aligned(p.b, p.b_batch_stride);
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  const int first_row = warp / 4 * Tile::kDown * kWmma;
  const int first_col = warp % 4 * Tile::kAcross * kWmma;

  WmmaSums sums[Tile::kDown][Tile::kAcross];
#pragma unroll
  for (int i = 0; i < Tile::kDown; ++i) {
#pragma unroll
    for (int j = 0; j < Tile::kAcross; ++j) wmma_clear(sums[i][j]);
  }
  for (int64_t first = 0; first < p.k; first += kInner) {
    of_a.load({a, p.m, p.k, place.row, first}, aligned_a);
    of_b.load({b, p.k, p.n, first, place.col}, aligned_b);
    of_a.each([&](int row, int k, T x) { s.a[row][k] = x; });
    of_b.each([&](int k, int col, T x) { s.b[k][col] = x; });
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kInner; k += kWmma) {
      WmmaA<T> x[Tile::kDown];
      WmmaB<T> y[Tile::kAcross];
#pragma unroll
      for (int i = 0; i < Tile::kDown; ++i) {
        wmma_load(x[i], &s.a[first_row + i * kWmma][k], kStrideA);
      }
#pragma unroll
      for (int j = 0; j < Tile::kAcross; ++j) {
        wmma_load(y[j], &s.b[k][first_col + j * kWmma], kStrideB);
      }
#pragma unroll
      for (int i = 0; i < Tile::kDown; ++i) {
#pragma unroll
        for (int j = 0; j < Tile::kAcross; ++j) wmma_multiply(sums[i][j], x[i], y[j]);
      }
    }
    __syncthreads();
  }

  const Matrix<T> y = p.y_of(place.batch);
  float (&mine)[kWmma][kWmma] = s.sums[warp];
#pragma unroll
  for (int i = 0; i < Tile::kDown; ++i) {
#pragma unroll
    for (int j = 0; j < Tile::kAcross; ++j) {
      wmma_store(&mine[0][0], sums[i][j], kWmma);
      __syncwarp();
      const int64_t row = place.row + first_row + i * kWmma;
      const int64_t col = place.col + first_col + j * kWmma;
      for (int e = lane; e < kWmma * kWmma; e += 32) {
        const int r = e / kWmma, c = e % kWmma;
        if (row + r < p.m && col + c < p.n) *y.at(row + r, col + c) = narrow<T>(mine[r][c]);
      }
      __syncwarp();
    }
  }
#endif
}

template <class T>
inline void run_wmma(const MatmulProblem<T>& p, cudaStream_t stream) {
  launch(matmul_wmma<T>,
         {grid_of(p, WmmaTile::kSide, WmmaTile::kSide), dim3(WmmaTile::kThreads), stream}, p);
}

}  // namespace opforge
