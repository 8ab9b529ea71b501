// SPDX-License-Identifier: Apache-2.0
// Sums of the rows of each group, for the gradients of the biases. Reads every row once. A block
// adds up some columns of a group: each thread every 16th row, then the 16 sums in their order.
// Includes no torch header.
#pragma once

#include <opforge/core/launch.h>
#include <opforge/core/layout.h>
#include <opforge/core/shared.h>
#include <opforge/core/vec.h>

#include <climits>
#include <opforge/families/product/groups.cuh>

namespace opforge {

constexpr int kSumRows = 16, kSumThreads = 16;  // threads below and beside each other

template <class T, int N>
__global__ void __launch_bounds__(kSumRows* kSumThreads)
    sum_groups(const Matrix<const T> x, const int cols, T* to, const ProductGroups groups) {
  constexpr int kCols = kSumThreads * N;
  struct Sums {
    compute_t<T> value[kSumRows][kCols];
  };
  const int across = int(ceil_div(cols, kCols));
  const GroupTile tile = find_tile<Groups::inner>(groups, 0, across, int(blockIdx.x));
  const int y = int(threadIdx.x) / kSumThreads, first = int(threadIdx.x) % kSumThreads * N;
  const int col = tile.index * kCols + first;
  compute_t<T> sums[N] = {};
  if (col < cols) {
#pragma unroll 4
    for (int row = tile.begin + y; row < tile.end; row += kSumRows) {
      const Vec<T, N> v = load<N>(x.at(row, col));
#pragma unroll
      for (int e = 0; e < N; ++e) sums[e] += widen(v.value[e]);
    }
  }
  Sums& s = shared<Sums>();
#pragma unroll
  for (int e = 0; e < N; ++e) s.value[y][first + e] = sums[e];
  __syncthreads();
  const int own = int(threadIdx.x), out = tile.index * kCols + own;
  if (own >= kCols || out >= cols) return;
  compute_t<T> sum = s.value[0][own];
  for (int i = 1; i < kSumRows; ++i) sum += s.value[i][own];
  to[int64_t(tile.group) * cols + out] = narrow<T>(sum);
}

// to (groups, cols): the sums of the rows of x that are in each group.
template <class T>
inline void launch_sum_groups(const Matrix<const T>& x, int64_t cols, T* to,
                              const ProductGroups& groups, cudaStream_t stream) {
  const auto run = [&]<int N>(Width<N>) {
    const int64_t blocks = ceil_div(cols, kSumThreads * N) * groups.count;
    if (blocks > INT_MAX) fail("sums of ", groups.count, " groups of ", cols, " are too many");
    launch(sum_groups<T, N>, {dim3(unsigned(blocks)), dim3(kSumRows * kSumThreads), stream}, x,
           int(cols), to, groups);
  };
  const bool vectors = tuning.vec != 1 && x.col_stride == 1 && x.row_stride % kVec<T> == 0 &&
                       cols % kVec<T> == 0 && reinterpret_cast<uintptr_t>(x.data) % 16 == 0;
  vectors ? run(Width<kVec<T>>{}) : run(Width<1>{});
}

}  // namespace opforge
