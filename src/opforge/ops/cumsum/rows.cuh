// SPDX-License-Identifier: Apache-2.0
// Running sums of adjacent elements.
#pragma once

#include <opforge/launch.h>
#include <opforge/layout.h>
#include <opforge/scan.h>
#include <opforge/vec.h>

#include <algorithm>

namespace opforge {

constexpr int kScanThreads = 512;

// Part of a row in the order of its scan, in vectors: 16-byte ones of y, of which the row's first
// and last may be partly outside of it. Offsets are in elements from vector 0.
template <class T>
struct Chunk {
  static constexpr int N = kVec<T>;
  const T* x;
  T* y;
  int step;       // from a vector to the next: negative if reverse
  int vectors;    // 0 for a thread without a row
  int low, high;  // the row is [low, high), or goes on beyond the chunk
  bool aligned;   // x, too

  __device__ __forceinline__ bool reverse() const { return step < 0; }
  __device__ __forceinline__ static void turn(Vec<T, N>& v) {
#pragma unroll
    for (int e = 0; e < N / 2; ++e) {
      const T other = v.value[e];
      v.value[e] = v.value[N - 1 - e];
      v.value[N - 1 - e] = other;
    }
  }

  __device__ __forceinline__ Vec<T, N> load(int j) const {
    const int at = j * step;
    Vec<T, N> v;
    if (aligned && at >= low && at + N <= high) {
      v = opforge::load<N>(x + at);
    } else {
#pragma unroll
      for (int e = 0; e < N; ++e) {
        v.value[e] = at + e >= low && at + e < high ? x[at + e] : narrow<T>(0.0f);
      }
    }
    if (reverse()) turn(v);
    return v;
  }

  __device__ __forceinline__ void store(int j, Vec<T, N> v) const {
    const int at = j * step;
    if (reverse()) turn(v);
    if (at >= low && at + N <= high) {
      opforge::store<N>(y + at, Packed<T, N>(v));
    } else {
#pragma unroll
      for (int e = 0; e < N; ++e) {
        if (at + e >= low && at + e < high) y[at + e] = v.value[e];
      }
    }
  }
};

template <class T>
struct RowScan {
  const T* x;
  T* y;  // dense, and aligned
  int64_t rows, length, row_stride;
  int piece;   // vectors to a chunk
  int chunks;  // per row
  int group;   // threads to a chunk: a power of two up to a warp, or the block
  bool exclusive, reverse;

  __device__ __forceinline__ Chunk<T> chunk(int64_t row, int c) const {
    constexpr int N = kVec<T>;
    const int missing = int(row * length % N);
    const int64_t vectors = (missing + length + N - 1) / N, begin = int64_t(c) * piece;
    const int64_t at = (reverse ? vectors - 1 - begin : begin) * N - missing;
    const T* const from = x + row * row_stride + at;
    const int64_t most = int64_t(piece + 1) * N;
    return {from,
            y + row * length + at,
            reverse ? -N : N,
            int(min(int64_t(piece), vectors - begin)),
            int(max(-at, -most)),
            int(min(length - at, most)),
            reinterpret_cast<uintptr_t>(from) % 16 == 0};
  }
};

template <class T>
__device__ __forceinline__ compute_t<T> sum_of(const Vec<T, kVec<T>>& v) {
  compute_t<T> sum = 0;
#pragma unroll
  for (int e = 0; e < kVec<T>; ++e) sum += widen(v.value[e]);
  return sum;
}

// Replaces each element by the sum up to it.
template <class T>
__device__ __forceinline__ void in_turn(Vec<T, kVec<T>>& v, compute_t<T> running, bool exclusive) {
#pragma unroll
  for (int e = 0; e < kVec<T>; ++e) {
    const compute_t<T> next = running + widen(v.value[e]);
    v.value[e] = narrow<T>(exclusive ? running : next);
    running = next;
  }
}

// V vectors to a thread: those of a warp lie together, a lane has every 32nd.
template <class T, int V>
__global__ void __launch_bounds__(kScanThreads, 2)
    scan_rows(const RowScan<T> p, const compute_t<T>* sums) {
  using A = compute_t<T>;
  const int lanes = min(p.group, kWarp), lane = threadIdx.x & (lanes - 1);
  // What row_sums read last is in the caches still.
  const int64_t block = p.chunks > 1 ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
  const int64_t which = block * (blockDim.x / unsigned(p.group)) + threadIdx.x / unsigned(p.group);
  const bool exists = which < p.rows * p.chunks;
  const int64_t row = !exists ? 0 : p.chunks == 1 ? which : which / p.chunks;
  const int chunk = exists ? int(which - row * p.chunks) : 0;
  Chunk<T> part = p.chunk(row, chunk);
  if (!exists) part.vectors = 0;

  A carry = 0;
  if (p.chunks > 1) {
    await_previous();
    for (int c = threadIdx.x; c < chunk; c += blockDim.x) carry += sums[row * p.chunks + c];
    carry = group_sum(carry, p.group);
  }
  int turn = 0;
  int mine = (p.group > kWarp ? threadIdx.x / kWarp * kWarp * V : 0) + lane;
  for (int tile = 0; tile < p.piece; tile += p.group * V, mine += p.group * V, turn ^= 1) {
    Vec<T, kVec<T>> v[V];
    A before[V], sum = 0;
#pragma unroll
    for (int u = 0; u < V; ++u) {
      if (mine + u * lanes < part.vectors) v[u] = part.load(mine + u * lanes);
    }
#pragma unroll
    for (int u = 0; u < V; ++u) {
      const A scanned = warp_scan(mine + u * lanes < part.vectors ? sum_of<T>(v[u]) : A(0), lanes);
      before[u] = sum + warp_before(scanned, lanes);
      sum += __shfl_sync(0xffffffffu, scanned, lanes - 1, lanes);
    }
    A start = carry;
    if (p.group > kWarp) {
      const BlockScan<A> block = block_scan(sum, turn);
      start += block.before;
      carry += block.total;
    }
#pragma unroll
    for (int u = 0; u < V; ++u) {
      if (mine + u * lanes < part.vectors) {
        in_turn<T>(v[u], start + before[u], p.exclusive);
        part.store(mine + u * lanes, v[u]);
      }
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kScanThreads) row_sums(const RowScan<T> p, compute_t<T>* sums) {
  const int64_t row = blockIdx.x / unsigned(p.chunks);
  const Chunk<T> part = p.chunk(row, int(blockIdx.x - row * p.chunks));
  compute_t<T> sum = 0;
#pragma unroll 4
  for (int j = threadIdx.x; j < part.vectors; j += blockDim.x) sum += sum_of<T>(part.load(j));
  release_next();
  sum = group_sum(sum, p.group);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

// `workspace(n)` gives memory for n sums.
template <class T, class Workspace>
void cumsum_rows(RowScan<T> p, cudaStream_t stream, const Workspace& workspace) {
  constexpr int V = 4;
  const bool shifted = p.rows > 1 && p.length % kVec<T> != 0;
  const int64_t vectors = ceil_div(p.length + (shifted ? kVec<T> - 1 : 0), kVec<T>);
  p.chunks = 1;
  p.piece = int(vectors);
  if (vectors <= kWarp * V) {  // several rows to a block
    const bool one = vectors < 16;
    p.group = 1;
    while (p.group * (one ? 1 : V) < vectors) p.group *= 2;
    const int block = 256;
    const dim3 grid(unsigned(ceil_div(p.rows, block / p.group)));
    launch(one ? scan_rows<T, 1> : scan_rows<T, V>, {grid, dim3(block), stream}, p, nullptr);
    return;
  }
  const int64_t wanted = 2 * multiprocessors() / p.rows;
  if (wanted < 4 || vectors <= kScanThreads * V / 2) {  // a block to a row, its trips equally long
    const int64_t trips = ceil_div(vectors, kScanThreads * V);
    p.group = int(ceil_div(ceil_div(vectors, trips * V), kWarp)) * kWarp;
    launch(scan_rows<T, V>, {dim3(unsigned(p.rows)), dim3(p.group), stream}, p, nullptr);
    return;
  }
  p.piece = int(std::max<int64_t>(ceil_div(vectors, wanted), 128 * V));
  p.chunks = int(ceil_div(vectors, p.piece));
  p.group = 128;
  while (p.group < kScanThreads && p.group * V < p.piece) p.group *= 2;
  const dim3 grid(unsigned(p.rows * p.chunks));
  compute_t<T>* const sums = workspace(p.rows * p.chunks);
  launch(row_sums<T>, {grid, dim3(p.group), stream}, p, sums);
  launch(scan_rows<T, V>, {grid, dim3(p.group), stream, 0, true}, p, sums);
}

}  // namespace opforge
