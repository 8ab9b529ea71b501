// SPDX-License-Identifier: Apache-2.0
// Running sums of adjacent elements.
#pragma once

#include <opforge/core/launch.h>
#include <opforge/core/layout.h>
#include <opforge/core/scan.h>
#include <opforge/core/unaligned.h>
#include <opforge/core/vec.h>

#include <algorithm>

namespace opforge {

enum class Direction { forward, reverse };
enum class RowShape { whole, ragged };  // whole: made of aligned vectors, in x and y

// Part of a row in the order of its scan: element i is at address i, or in reverse N - 1 - i, from
// that of vector 0. Vectors are aligned in y; the row's first and last may be partly outside of it.
template <class T, Direction direction, RowShape shape>
struct Chunk {
  static constexpr int N = kVec<T>;
  static constexpr bool Reverse = direction == Direction::reverse;
  static constexpr bool Ragged = shape == RowShape::ragged;
  const T* x;
  T* y;
  int vectors;      // 0 for a thread without a row
  int front, back;  // the row is [front, back), or goes on beyond the chunk
  bool alike;       // x is aligned as y

  __device__ __forceinline__ static int at(int j) { return Reverse ? -j * N : j * N; }
  __device__ __forceinline__ bool whole(int j) const {
    return !Ragged || (j * N >= front && (j + 1) * N <= back);
  }
  __device__ __forceinline__ bool at_once(int j) const { return !Ragged || (alike && whole(j)); }
  __device__ __forceinline__ bool has(int j, int e) const {
    const int i = j * N + (Reverse ? N - 1 - e : e);
    return i >= front && i < back;
  }

  // Vectors `first`, `first + hop` ...: starts all loads of aligned vectors before it uses any.
  template <int V>
  __device__ __forceinline__ void load(int first, int hop, Packed<T, N> (&v)[V]) const {
#pragma unroll
    for (int u = 0; u < V; ++u) {
      const int j = first + u * hop;
      if (j < vectors && at_once(j)) v[u] = load_packed<N>(x + at(j));
    }
    if constexpr (Ragged) {
#pragma unroll
      for (int u = 0; u < V; ++u) {
        const int j = first + u * hop;
        if (j < vectors && !at_once(j)) v[u] = piecemeal(j);
      }
    }
  }
  __device__ __forceinline__ Packed<T, N> piecemeal(int j) const {
    const T* const from = x + at(j);
    const int past = misalignment(from), first = j * N - (Reverse ? N - past : past);
    if (first >= front && first + 2 * N <= back) return Unaligned<T, N>(from).together();
    Vec<T, N> v;
#pragma unroll
    for (int e = 0; e < N; ++e) v.value[e] = has(j, e) ? from[e] : narrow<T>(0.0f);
    return v;
  }

  __device__ __forceinline__ void store(int j, const Packed<T, N>& v) const {
    T* const to = y + at(j);
    if (whole(j)) return opforge::store<N>(to, v);
    const Vec<T, N> each = v.unpacked();
#pragma unroll
    for (int e = 0; e < N; ++e) {
      if (has(j, e)) to[e] = each.value[e];
    }
  }
};

template <class T>
struct RowScan {
  const T* x;
  T* y;  // dense, and aligned
  int64_t rows, length, row_stride;
  int piece;   // vectors of a chunk
  int chunks;  // of a row
  int group;   // threads that share a chunk: a power of two up to a warp, or the block
  bool exclusive, reverse;

  bool ragged() const {
    constexpr int N = kVec<T>;
    return length % N != 0 || misalignment(x) != 0 || (rows > 1 && row_stride % N != 0);
  }

  template <Direction direction, RowShape shape>
  __device__ __forceinline__ Chunk<T, direction, shape> chunk(int64_t row, int c) const {
    using Result = Chunk<T, direction, shape>;
    constexpr int N = kVec<T>;
    constexpr bool Reverse = Result::Reverse, Ragged = Result::Ragged;
    const int missing = Ragged ? int(row * length % N) : 0;
    const int64_t vectors = (missing + length + N - 1) / N, begin = int64_t(c) * piece;
    const int64_t at = (Reverse ? vectors - 1 - begin : begin) * N - missing;
    const int64_t front = (Reverse ? vectors * N - missing - length : missing) - begin * N;
    const int64_t most = int64_t(piece + 2) * N;
    const T* const from = x + row * row_stride + at;
    return {from,
            y + row * length + at,
            int(min(int64_t(piece), vectors - begin)),
            int(max(front, -most)),
            int(min(front + length, most)),
            misalignment(from) == 0};
  }
};

template <Direction direction, class T>
__device__ __forceinline__ compute_t<T> sum_of(const Packed<T, kVec<T>>& packed) {
  compute_t<T> v[kVec<T>], sum = 0;
  widen(packed, v);
#pragma unroll
  for (int e = 0; e < kVec<T>; ++e) {
    sum += v[direction == Direction::reverse ? kVec<T> - 1 - e : e];
  }
  return sum;
}

// Each element replaced by the sum up to it.
template <Direction direction, class T>
__device__ __forceinline__ Packed<T, kVec<T>> running_sums(const Packed<T, kVec<T>>& packed,
                                                           compute_t<T> running, bool exclusive) {
  compute_t<T> v[kVec<T>];
  widen(packed, v);
#pragma unroll
  for (int i = 0; i < kVec<T>; ++i) {
    compute_t<T>& one = v[direction == Direction::reverse ? kVec<T> - 1 - i : i];
    const compute_t<T> next = running + one;
    one = exclusive ? running : next;
    running = next;
  }
  return narrow<T>(v);
}

// How a chunk is held: `Vectors` per thread, in a block of up to `Threads` threads. The registers
// of a multiprocessor must do for `Blocks` such blocks, or `FewerBlocks` with ragged rows or
// doubles, which take more registers. In parts: the threads hold one part and scan it, while they
// load the next.
template <int Vectors, int Threads, int Blocks, int FewerBlocks, bool Parts>
struct ScanHold {
  static constexpr int kVectors = Vectors, kThreads = Threads;
  template <class T, RowShape shape>
  static constexpr int blocks() {
    return shape == RowShape::ragged || sizeof(T) == 8 ? FewerBlocks : Blocks;
  }
  static constexpr bool kParts = Parts;
};
using ScanWhole = ScanHold<4, 512, 3, 2, false>;
using ScanParts = ScanHold<4, 256, 4, 3, true>;

// The vectors of a warp are adjacent; a lane has every 32nd. Where chunks are held whole, those of
// a row are the blocks of a cluster. Otherwise `sums` has the sum of each chunk.
template <class T, class Hold, Direction direction, RowShape shape>
__global__ void __launch_bounds__(Hold::kThreads, Hold::template blocks<T, shape>())
    scan_rows(const RowScan<T> p, const compute_t<T>* sums) {
  using A = compute_t<T>;
  constexpr int V = Hold::kVectors;
  constexpr bool kParts = Hold::kParts;
  const bool alone = kParts || p.group > kWarp;  // a block has one chunk
  const int lanes = alone ? kWarp : p.group, lane = threadIdx.x & (lanes - 1);
  int64_t row;
  int chunk = 0;
  if (alone) {
    // Chunks in reverse order: what sum_chunks read last is still in the caches.
    const unsigned block = kParts && p.chunks > 1 ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
    row = p.chunks == 1 ? block : block / unsigned(p.chunks);
    chunk = int(block - row * p.chunks);
  } else {
    const int shift = __ffs(p.group) - 1;
    row = int64_t(blockIdx.x) * (blockDim.x >> shift) + (threadIdx.x >> shift);
  }
  auto part = p.template chunk<direction, shape>(row, chunk);
  if (row >= p.rows) part.vectors = 0;
  int mine = (alone ? threadIdx.x / kWarp * kWarp * V : 0) + lane;
  Packed<T, kVec<T>> v[V];
  part.load(mine, lanes, v);

  A carry = 0;
  if (p.chunks > 1) {
    if constexpr (kParts) {
      await_previous();
      for (int c = threadIdx.x; c < chunk; c += blockDim.x) carry += sums[row * p.chunks + c];
      carry = group_sum(carry, p.group);
    } else {
      begin_cluster_scan<A>();
    }
  }
  for (int done = 0, buffer = 0; done < p.piece; done += p.group * V, buffer ^= 1) {
    Packed<T, kVec<T>> next[V];
    if constexpr (kParts) part.load(mine + p.group * V, lanes, next);
    A before[V], sum = 0;
#pragma unroll
    for (int u = 0; u < V; ++u) {
      before[u] = mine + u * lanes < part.vectors ? sum_of<direction>(v[u]) : A(0);
    }
    warp_scan(before, lanes);
#pragma unroll
    for (int u = 0; u < V; ++u) {
      const A through = __shfl_sync(0xffffffffu, before[u], lanes - 1, lanes);
      before[u] = sum + warp_before(before[u], lanes);
      sum += through;
    }
    A start = carry;
    if (alone) {
      const BlockScan<A> block = block_scan(sum, buffer);
      start += block.before;
      carry += block.total;
      if (!kParts && p.chunks > 1) start += cluster_before(block.total);
    }
#pragma unroll
    for (int u = 0; u < V; ++u) {
      const int j = mine + u * lanes;
      if (j < part.vectors)
        part.store(j, running_sums<direction>(v[u], start + before[u], p.exclusive));
    }
    if constexpr (kParts) {
      mine += p.group * V;
#pragma unroll
      for (int u = 0; u < V; ++u) v[u] = next[u];
    } else {
      break;
    }
  }
}

template <class T>
__global__ void __launch_bounds__(512) sum_chunks(const RowScan<T> p, compute_t<T>* sums) {
  const int64_t row = blockIdx.x / unsigned(p.chunks);
  const int chunk = int(blockIdx.x - row * p.chunks);
  compute_t<T> sum = 0;
  const auto add = [&](const auto& part) {
    constexpr int V = 4;
    for (int j = threadIdx.x; j < part.vectors; j += V * blockDim.x) {
      Packed<T, kVec<T>> v[V];
      part.load(j, blockDim.x, v);
#pragma unroll
      for (int u = 0; u < V; ++u) {
        if (j + u * int(blockDim.x) < part.vectors) sum += sum_of<Direction::forward>(v[u]);
      }
    }
  };
  if (p.reverse) {
    add(p.template chunk<Direction::reverse, RowShape::ragged>(row, chunk));
  } else {
    add(p.template chunk<Direction::forward, RowShape::ragged>(row, chunk));
  }
  release_next();
  sum = group_sum(sum, p.group);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

template <class Hold, class T>
void scan_held(const RowScan<T>& p, int block, cudaStream_t stream,
               const compute_t<T>* sums = nullptr) {
  const dim3 grid(unsigned(ceil_div(p.rows * p.chunks, block / p.group)));
  const auto run = [&](auto* kernel) {
    const int cluster = Hold::kParts ? 1 : p.chunks;
    launch(kernel, {grid, dim3(block), stream, 0, sums != nullptr, cluster}, p, sums);
  };
  const auto run_shape = [&]<RowShape shape>(std::integral_constant<RowShape, shape>) {
    p.reverse ? run(scan_rows<T, Hold, Direction::reverse, shape>)
              : run(scan_rows<T, Hold, Direction::forward, shape>);
  };
  p.ragged() ? run_shape(std::integral_constant<RowShape, RowShape::ragged>{})
             : run_shape(std::integral_constant<RowShape, RowShape::whole>{});
}

// `workspace(n)` gives memory for n sums.
template <class T, class Workspace>
void cumsum_rows(RowScan<T> p, cudaStream_t stream, const Workspace& workspace) {
  constexpr int V = ScanWhole::kVectors, kBlockHolds = ScanWhole::kThreads * V;
  static_assert(V == ScanParts::kVectors);
  const bool shifted = p.rows > 1 && p.length % kVec<T> != 0;
  const int64_t vectors = ceil_div(p.length + (shifted ? kVec<T> - 1 : 0), kVec<T>);
  const auto threads = [](int64_t own) { return int(ceil_div(own, V * kWarp)) * kWarp; };
  p.chunks = 1;
  p.piece = int(vectors);
  if (vectors <= kWarp * V) {  // several rows to a block
    p.group = 1;
    while (p.group * V < vectors) p.group *= 2;
    return scan_held<ScanWhole>(p, 128, stream);
  }
  if (vectors <= kBlockHolds) {  // a block to a row
    p.group = threads(vectors);
    return scan_held<ScanWhole>(p, p.group, stream);
  }
  const int64_t wanted = 2 * multiprocessors() / p.rows;
  // A cluster to a row. Many ragged rows take the parts below, which were faster for 50257 columns.
  if (vectors <= 8 * kBlockHolds && (wanted >= 4 || !p.ragged()) &&
      can_cluster(scan_rows<T, ScanWhole, Direction::forward, RowShape::whole>)) {
    while (p.chunks * kBlockHolds < vectors) p.chunks *= 2;
    p.piece = int(ceil_div(vectors, p.chunks));
    p.group = threads(p.piece);
    return scan_held<ScanWhole>(p, p.group, stream);
  }
  if (wanted < 4) {  // a block to a row, its trips equally long
    const int64_t trips = ceil_div(vectors, ScanParts::kThreads * V);
    p.group = threads(ceil_div(vectors, trips));
    return scan_held<ScanParts>(p, p.group, stream);
  }
  p.piece = int(std::max<int64_t>(ceil_div(vectors, wanted), 128 * V));
  p.chunks = int(ceil_div(vectors, p.piece));
  p.group = std::min(ScanParts::kThreads, threads(p.piece));
  compute_t<T>* const sums = workspace(p.rows * p.chunks);
  launch(sum_chunks<T>, {dim3(unsigned(p.rows * p.chunks)), dim3(p.group), stream}, p, sums);
  scan_held<ScanParts>(p, p.group, stream, sums);
}

}  // namespace opforge
