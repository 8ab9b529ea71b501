// SPDX-License-Identifier: Apache-2.0
// Products of groups without tensor cores, for any GPU, dtype and strides. Operations: 2 n k for
// each row. A tile of 64 x 64 does 16 multiplications for each element that it reads, so that the
// multipliers limit it, not L2. Includes no torch header.
#pragma once

#include <opforge/core/launch.h>
#include <opforge/core/layout.h>
#include <opforge/core/shared.h>

#include <climits>
#include <opforge/families/product/groups.cuh>

namespace opforge {

constexpr int kPlainTile = 64, kPlainInner = 16, kPlainThreads = 256;

template <class T>
struct PlainParams {
  Matrix<const T> a, b;  // rows x inner, columns x inner
  int64_t b_batch = 0;   // from a group's b to the next one's, with Groups::rows
  T* out = nullptr;      // m x n contiguous, or with Groups::inner one for each group
  int m = 0, n = 0, k = 0;
  const T* biases = nullptr;  // a value for each column of each group, or none
  int64_t bias_step = 0, bias_batch = 0;
  ProductGroups groups;
};

template <class T>
struct PlainStage {
  compute_t<T> a[kPlainInner][kPlainTile + 1], b[kPlainInner][kPlainTile + 1];
};

// Fetches the part [row, end) x [inner, inner_end) of a tile, the rest as zeros.
template <class T>
__device__ __forceinline__ void load_plain(const Matrix<const T>& x, int row, int end, int inner,
                                           int inner_end,
                                           compute_t<T> (&to)[kPlainInner][kPlainTile + 1]) {
  const bool along_inner = x.col_stride <= x.row_stride;
  for (int i = int(threadIdx.x); i < kPlainTile * kPlainInner; i += kPlainThreads) {
    const int r = along_inner ? i / kPlainInner : i % kPlainTile;
    const int k = along_inner ? i % kPlainInner : i / kPlainTile;
    const bool there = row + r < end && inner + k < inner_end;
    to[k][r] = there ? compute_t<T>(widen(*x.at(row + r, inner + k))) : compute_t<T>(0);
  }
}

template <class T, Groups kind>
__global__ void __launch_bounds__(kPlainThreads) plain_groups(const PlainParams<T> p) {
  constexpr int kSide = 16, kOwn = kPlainTile / kSide;  // each thread has 4 x 4 sums
  constexpr bool kRows = kind == Groups::rows;
  const int tiles_n = int(ceil_div(p.n, kPlainTile));
  const int per_group = kRows ? tiles_n : tiles_n * int(ceil_div(p.m, kPlainTile));
  const GroupTile tile = find_tile<kind>(p.groups, kPlainTile, per_group, int(blockIdx.x));
  if (!tile.there) return;
  const int row = tile.index / tiles_n * kPlainTile + (kRows ? tile.begin : 0);
  const int col = tile.index % tiles_n * kPlainTile;
  const int row_end = kRows ? tile.end : p.m;
  const bool in_group = tile.group < p.groups.count;
  const int first = kRows ? 0 : tile.begin, last = !kRows ? tile.end : in_group ? p.k : 0;
  Matrix<const T> b = p.b;
  if (kRows && in_group) b.data += tile.group * p.b_batch;

  PlainStage<T>& s = shared<PlainStage<T>>();
  const int y = int(threadIdx.x) / kSide, x = int(threadIdx.x) % kSide;
  compute_t<T> sums[kOwn][kOwn] = {};
  for (int inner = first; inner < last; inner += kPlainInner) {
    load_plain<T>(p.a, row, row_end, inner, last, s.a);
    load_plain<T>(b, col, p.n, inner, last, s.b);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kPlainInner; ++k) {
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
#pragma unroll
        for (int j = 0; j < kOwn; ++j) {
          sums[i][j] += s.a[k][y + i * kSide] * s.b[k][x + j * kSide];
        }
      }
    }
    __syncthreads();
  }
  T* const out = p.out + (kRows ? 0 : int64_t(tile.group) * p.m * p.n);
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
      const int r = row + y + i * kSide, c = col + x + j * kSide;
      if (r >= row_end || c >= p.n) continue;
      if (p.biases != nullptr && in_group) {
        sums[i][j] += widen(p.biases[tile.group * p.bias_batch + c * p.bias_step]);
      }
      out[int64_t(r) * p.n + c] = narrow<T>(sums[i][j]);
    }
  }
}

template <Groups kind, class T>
inline void launch_plain_groups(const PlainParams<T>& p, cudaStream_t stream) {
  const int64_t down = ceil_div(p.m, kPlainTile), across = ceil_div(p.n, kPlainTile);
  // At most: each group, and the rows after the last one, may begin a row of tiles.
  const int64_t tiles =
      (kind == Groups::rows ? down + p.groups.count + 1 : down * p.groups.count) * across;
  if (tiles > INT_MAX) fail("a product of ", tiles, " tiles is too large");
  launch(plain_groups<T, kind>, {dim3(unsigned(tiles)), dim3(kPlainThreads), stream}, p);
}

}  // namespace opforge
