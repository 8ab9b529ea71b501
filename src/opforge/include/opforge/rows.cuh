// SPDX-License-Identifier: Apache-2.0
// One result per row of a matrix, and a new row from it: norms, softmax and their gradients.
// Includes no torch header.
//
// Each row is read once and held in registers, four 16-byte vectors to a thread, while its threads
// agree on the total: a few lanes, a block, or the blocks of a cluster through each other's shared
// memory, whatever the length takes. Only a row too long for eight blocks is read twice. Blocks do
// one row each, and many are in flight: memory is never idle while some of them add up.
//
// Rows need not be aligned, only all operands alike: vectors begin at 16-byte boundaries of memory,
// and the two ends of a row go by element.
#pragma once

#include <opforge/cluster.h>
#include <opforge/index.h>
#include <opforge/launch.h>
#include <opforge/reduce.h>
#include <opforge/vec.h>

#include <algorithm>
#include <type_traits>

namespace opforge {

constexpr int kHeld = 4;          // vectors of a row that a thread holds
constexpr int kRowThreads = 512;  // of a block, before a row is spread over several
constexpr int kRowBlock = 128;    // threads of a block of short rows
constexpr int kMaxCluster = 8;

// The rows of a tensor: the last dim is contiguous, the others in any strides.
template <class T>
struct Rows {
  T* data = nullptr;
  Walk<uint64_t, 1> leading;

  __device__ __forceinline__ T* at(int64_t row) const {
    uint64_t inner;
    return data + leading.offset(0, uint64_t(row), inner);
  }
};

// How rows are dealt to threads.
struct RowPlan {
  int64_t rows, cols;
  int group;    // threads of a block to a row: up to 32 and a power of two, or the whole block
  int cluster;  // blocks to a row
  int block;    // threads
  bool held;    // whether a row fits the registers of its threads

  unsigned blocks() const { return unsigned(ceil_div(rows, block / group) * cluster); }
};

// `width` is that of a vector; ragged rows need not begin or end with a whole one.
inline RowPlan plan_rows(int64_t rows, int64_t cols, int width, bool ragged, bool clusters) {
  RowPlan p{rows, cols, ragged ? 2 * width : 1, 1, kRowBlock, true};  // an element to a thread
  const int64_t threads = ceil_div(ceil_div(cols, width), kHeld);
  if (threads <= kWarp) {
    while (p.group < threads) p.group *= 2;
    return p;
  }
  const auto warps = [&] { return ceil_div(ceil_div(threads, p.cluster), kWarp) * kWarp; };
  while (clusters && p.cluster < kMaxCluster && warps() > kRowThreads) p.cluster *= 2;
  p.held = warps() <= kRowThreads;
  p.group = p.block = int(std::min<int64_t>(warps(), kRowThreads));
  return p;
}

// This thread's place among those of its row.
struct Place {
  int64_t row;
  int index, size;  // among the row's threads, in all of its blocks
  bool exists;      // the last block may have less rows than it could

  __device__ __forceinline__ explicit Place(const RowPlan& p) {
    const int rank = p.cluster == 1 ? 0 : cluster_rank();
    const unsigned groups = blockDim.x / unsigned(p.group);
    row = int64_t(blockIdx.x / unsigned(p.cluster)) * groups + threadIdx.x / unsigned(p.group);
    index = int(rank * p.group + threadIdx.x % unsigned(p.group));
    size = p.group * p.cluster;
    exists = row < p.rows;
  }
};

// Combines what the threads of a row have found; all of them get it. Totals are combined by +=, of
// which the order does not matter to the bits, and Total() changes nothing. Who calls it again and
// again counts the turns. All blocks of a cluster must have started.
template <class Total>
__device__ __forceinline__ Total row_total(const RowPlan& p, Total total, int turn = 0) {
  total = warp_total(total, min(p.group, kWarp));
  if (p.group <= kWarp && p.cluster == 1) return total;
  // Of two turns, so that those who are ahead do not write what the others still read.
  struct Parts {
    Total of[2][kMaxCluster * kRowThreads / kWarp];
  };
  Total(&parts)[kMaxCluster * kRowThreads / kWarp] = shared<Parts>().of[turn % 2];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int warps = p.group / kWarp;
  int first = warp / warps * warps;  // of the row's warps in this block
  if (p.cluster == 1) {
    if (lane == 0) parts[warp] = total;
    __syncthreads();
  } else {
    const int rank = cluster_rank();
    if (lane < p.cluster) *in_block(&parts[rank * warps + warp], lane) = total;
    cluster_sync();
    first = 0;
  }
  total = Total();
  for (int i = lane; i < warps * p.cluster; i += kWarp) total += parts[first + i];
  return warp_total(total, kWarp);
}

// A visitor has: using Element; struct Total, see above;
//   struct Cursor, where a row of each operand lies; Cursor start(row);
//   const Element* first(Cursor), an operand by which all are aligned;
//   template <int N> struct Loaded, what is held of N columns of the operands;
//   Loaded<N> load<N>(Cursor, col, bool again), again in the second pass over a row not held;
//   void add(Total&, Loaded<N>); void finish(Cursor, Total), by one thread of the row;
//   void use(Cursor, col, Loaded<N>, Total), which writes the result.
template <int N, bool Held, class Visitor>
__global__ void __launch_bounds__(kRowThreads) map_rows(const RowPlan p, const Visitor visitor) {
  using Index = std::conditional_t<Held, int, int64_t>;
  if (p.cluster > 1) cluster_arrive();
  const Place place(p);
  const auto cursor = visitor.start(place.exists ? place.row : 0);
  // Some columns before the first whole vector, the vectors, and what is left.
  const int head =
      N == 1 ? 0 : int(min(p.cols, int64_t((N - misalignment(visitor.first(cursor))) % N)));
  const Index vectors = place.exists ? Index((p.cols - head) / N) : 0;
  const Index body = vectors * N;
  const int ends = place.exists ? int(p.cols - body) : 0;
  const Index end = place.index < head ? Index(place.index) : body + place.index;
  const bool has_end = N > 1 && place.index < ends;

  typename Visitor::Total total;
  typename Visitor::template Loaded<1> single;
  if (has_end) {
    single = visitor.template load<1>(cursor, end, false);
    visitor.add(total, single);
  }
  if constexpr (Held) {
    typename Visitor::template Loaded<N> held[kHeld];
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      const int v = place.index + k * place.size;
      if (v < vectors) held[k] = visitor.template load<N>(cursor, head + v * N, false);
    }
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      if (place.index + k * place.size < vectors) visitor.add(total, held[k]);
    }
    if (p.cluster > 1) cluster_wait();  // for all to have started
    total = row_total(p, total);
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      const int v = place.index + k * place.size;
      renew(held[k]);
      if (v < vectors) visitor.use(cursor, head + v * N, held[k], total);
    }
  } else {
    for (Index v = place.index; v < vectors; v += place.size) {
      visitor.add(total, visitor.template load<N>(cursor, head + v * N, false));
    }
    if (p.cluster > 1) cluster_wait();  // for all to have started
    total = row_total(p, total);
    for (Index v = place.index; v < vectors; v += place.size) {
      const auto again = visitor.template load<N>(cursor, head + v * N, true);
      visitor.use(cursor, head + v * N, again, total);
    }
  }
  if (has_end) visitor.use(cursor, end, single, total);
  if (place.exists && place.index == 0) visitor.finish(cursor, total);
}

template <int N, class Visitor>
void map_rows(int64_t rows, int64_t cols, bool ragged, const Visitor& visitor,
              cudaStream_t stream) {
  if (rows == 0) return;
  RowPlan p = plan_rows(rows, cols, N, ragged, false);
  if (!p.held && can_cluster(map_rows<N, true, Visitor>)) {
    p = plan_rows(rows, cols, N, ragged, true);
  }
  launch(p.held ? map_rows<N, true, Visitor> : map_rows<N, false, Visitor>,
         {dim3(p.blocks()), dim3(p.block), stream, 0, false, p.cluster}, p, visitor);
}

}  // namespace opforge
