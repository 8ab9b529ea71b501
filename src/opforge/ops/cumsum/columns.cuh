// SPDX-License-Identifier: Apache-2.0
// Running sums down the rows of matrices, for many columns side by side.
#pragma once

#include <opforge/core/launch.h>
#include <opforge/core/layout.h>
#include <opforge/core/scan.h>
#include <opforge/core/vec.h>

#include <algorithm>

namespace opforge {

constexpr int kColumnThreads = 512;

template <class T>
struct ColumnScan {
  const T* x;
  T* y;  // dense
  int64_t length, inner, outer_stride, row_stride;
  int64_t piece;  // rows to a chunk
  int chunks;
  int64_t tiles;  // across the columns
  int across;     // threads side by side: a power of two up to a warp
  bool exclusive, reverse;

  __host__ __device__ int columns() const { return across * kVec<T>; }  // of a tile
  __host__ __device__ int64_t width() const { return tiles * columns(); }
};

enum class Access { vectors, elements };
enum class Pass { sums, scan };  // sums: of each chunk, if there are several

// Element by element, loads need more registers.
template <Access access>
constexpr int kRowsPerThread = access == Access::vectors ? 4 : 2;

// What a block knows of its columns. Element e of thread tx is at e * across + tx.
template <class A, int N>
struct ColumnSums {
  A carry[kWarp * N];  // over everything above the tile
  A warp[kColumnThreads / kWarp][kWarp * N];
};

// Turns each thread's sums into the sums over all rows above it, and adds the tile to the carry.
template <class A, int N>
__device__ __forceinline__ void scan_block_columns(ColumnSums<A, N>& sums, A (&own)[N],
                                                   int across) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
  const int tx = lane & (across - 1);
  A before[N];
#pragma unroll
  for (int e = 0; e < N; ++e) {
    const A scanned = warp_scan(own[e], kWarp, across);
    before[e] = warp_before(scanned, kWarp, across);
    if (lane >= kWarp - across) sums.warp[warp][e * across + tx] = scanned;
  }
  __syncthreads();
  for (int q = threadIdx.x; q < across * N; q += blockDim.x) {
    A running = sums.carry[q];
    for (int w = 0; w < warps; ++w) {
      const A next = running + sums.warp[w][q];
      sums.warp[w][q] = running;
      running = next;
    }
    sums.carry[q] = running;
  }
  __syncthreads();
#pragma unroll
  for (int e = 0; e < N; ++e) own[e] = sums.warp[warp][e * across + tx] + before[e];
}

// The carry: the sums of the chunks before this one, several threads to a column.
template <class T, class A, int N>
__device__ __forceinline__ void carry_earlier_chunks(ColumnSums<A, N>& known,
                                                     const ColumnScan<T>& p, const A* chunk_sums,
                                                     int chunk) {
  const int columns = p.columns(), parts = min(int(blockDim.x) / columns, kWarp / 2);
  const int q = threadIdx.x & (columns - 1), part = threadIdx.x / unsigned(columns);
  if (part < parts) {
    A sum = 0;
#pragma unroll 4
    for (int c = part; c < chunk; c += parts) sum += chunk_sums[c * p.width() + q];
    known.warp[part][q] = sum;
  }
  __syncthreads();
  if (part == 0) {
    A sum = 0;
    for (int k = 0; k < parts; ++k) sum += known.warp[k][q];
    known.carry[q] = sum;
  }
}

// A thread that loads vectors has neighbouring columns, otherwise every `across`-th one. Pass::sums
// writes only the sum of each column of the chunk, to `sums`.
template <class T, Access access, Pass pass>
__global__ void __launch_bounds__(kColumnThreads, 2)
    scan_columns(const ColumnScan<T> p, compute_t<T>* sums) {
  using A = compute_t<T>;
  constexpr bool kVectors = access == Access::vectors, kSum = pass == Pass::sums;
  constexpr int N = kVec<T>, R = kRowsPerThread<access>;
  ColumnSums<A, N>& known = shared<ColumnSums<A, N>>();
  const int tx = threadIdx.x & (p.across - 1), ty = threadIdx.x / unsigned(p.across);
  const int down = blockDim.x / unsigned(p.across);
  // Chunks in reverse order: what the first launch read last is still in the caches.
  const int64_t block = !kSum && p.chunks > 1 ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
  const int64_t rest = block / p.tiles, tile = block - rest * p.tiles;
  const int64_t outer = rest / p.chunks;
  const int chunk = int(rest - outer * p.chunks);
  const int64_t col = tile * p.columns() + (kVectors ? tx * N : tx);
  const int step = kVectors ? 1 : p.across;
  const T* const x = p.x + outer * p.outer_stride + col;
  T* const y = p.y + outer * p.length * p.inner + col;
  A* const chunk_sums = sums + (outer * p.chunks * p.width() + tile * p.columns());

  for (int q = threadIdx.x; q < p.columns(); q += blockDim.x) known.carry[q] = 0;
  if (!kSum && p.chunks > 1) {
    await_previous();
    carry_earlier_chunks(known, p, chunk_sums, chunk);
  }
  __syncthreads();

  const int64_t begin = chunk * p.piece, end = min(begin + p.piece, p.length);
  // How many of the thread's columns exist.
  const int have = int(max(min((p.inner - col + step - 1) / step, int64_t(N)), int64_t(0)));
  const int64_t hop = p.reverse ? -p.row_stride : p.row_stride;
  const int64_t y_hop = p.reverse ? -p.inner : p.inner;
  A own[N] = {};
  for (int64_t mine = begin + ty * R; mine - ty * R < end; mine += down * R) {
    const int rows = int(max(min(end - mine, int64_t(R)), int64_t(0)));
    const int64_t at = p.reverse ? p.length - 1 - mine : mine;
    const T* const from = x + at * p.row_stride;
    Vec<T, N> v[R];
#pragma unroll
    for (int r = 0; r < R; ++r) {
      if (kVectors && r < rows && have > 0) {
        v[r] = load<N>(from + r * hop);
      } else {
#pragma unroll
        for (int e = 0; e < N; ++e) {
          v[r].value[e] = r < rows && e < have ? from[r * hop + e * step] : narrow<T>(0.0f);
        }
      }
    }
#pragma unroll
    for (int e = 0; e < N; ++e) {
      A sum = 0;
#pragma unroll
      for (int r = 0; r < R; ++r) sum += widen(v[r].value[e]);
      own[e] = kSum ? own[e] + sum : sum;
    }
    if constexpr (kSum) continue;
    scan_block_columns(known, own, p.across);
    T* const to = y + at * p.inner;
#pragma unroll
    for (int r = 0; r < R; ++r) {
      if (r >= rows) break;
#pragma unroll
      for (int e = 0; e < N; ++e) {
        const A next = own[e] + widen(v[r].value[e]);
        v[r].value[e] = narrow<T>(p.exclusive ? own[e] : next);
        own[e] = next;
      }
      if (kVectors) {
        if (have > 0) store<N>(to + r * y_hop, Packed<T, N>(v[r]));
      } else {
#pragma unroll
        for (int e = 0; e < N; ++e) {
          if (e < have) to[r * y_hop + e * step] = v[r].value[e];
        }
      }
    }
    __syncthreads();  // the next trip writes to `known`
  }
  if constexpr (kSum) {
    release_next();
    scan_block_columns(known, own, p.across);
    for (int q = threadIdx.x; q < p.columns(); q += blockDim.x) {
      chunk_sums[chunk * p.width() + q] = known.carry[q];
    }
  }
}

template <class T, class Workspace>
void cumsum_columns(ColumnScan<T> p, int64_t outer, cudaStream_t stream,
                    const Workspace& workspace) {
  constexpr int N = kVec<T>;
  const bool vectors = p.inner % N == 0 && misalignment(p.x) == 0 && p.row_stride % N == 0 &&
                       p.outer_stride % N == 0 && tuning.vec != 1;
  const int rows = vectors ? kRowsPerThread<Access::vectors> : kRowsPerThread<Access::elements>;
  // Wide tiles read memory best, but there are more narrow ones: enough to fill the device.
  const int64_t wanted = 2 * multiprocessors();
  p.across = kWarp;
  const int narrowest = vectors ? 4 : 8;
  const auto tiles = [&] { return ceil_div(p.inner, p.columns()); };
  while (p.across > narrowest && (tiles() * outer < wanted || p.columns() / 2 >= p.inner)) {
    p.across /= 2;
  }
  p.tiles = tiles();
  int block = kColumnThreads;
  while (block > kWarp && block / 2 / p.across * rows >= p.length) block /= 2;
  p.chunks = 1;
  p.piece = p.length;
  if (p.tiles * outer * 4 <= wanted) {
    p.piece =
        std::max<int64_t>(ceil_div(p.length, wanted / (p.tiles * outer)), block / p.across * rows);
    p.chunks = int(ceil_div(p.length, p.piece));
  }
  const dim3 grid(unsigned(p.tiles * p.chunks * outer));
  compute_t<T>* sums = nullptr;
  if (p.chunks > 1) {
    sums = workspace(outer * p.chunks * p.width());
    launch(vectors ? scan_columns<T, Access::vectors, Pass::sums>
                   : scan_columns<T, Access::elements, Pass::sums>,
           {grid, dim3(block), stream}, p, sums);
  }
  launch(vectors ? scan_columns<T, Access::vectors, Pass::scan>
                 : scan_columns<T, Access::elements, Pass::scan>,
         {grid, dim3(block), stream, 0, p.chunks > 1}, p, sums);
}

}  // namespace opforge
