// SPDX-License-Identifier: Apache-2.0
// reduce_sum reads x once and writes next to nothing: its floor is a read of x. It computes one
// addition for each element.
//
// Three shapes of the same sum, by the strides of x:
//   rows      the reduced dims hold contiguous runs: a group of threads per run, 16-byte vectors;
//             several runs, or the pieces of a long one, are added in a second launch;
//   columns   the kept dim is contiguous: opforge/algorithms/columns.cuh;
//   scattered anything else: a group of threads per output, element by element.
#pragma once

#include <opforge/core/index.h>
#include <opforge/core/reduce.h>

#include <opforge/algorithms/columns.cuh>

namespace opforge {

template <class In, class Index>
struct RowParams {
  const In* x;
  int64_t outputs;        // kept elements
  Walk<Index, 1> kept;    // where each output's elements start
  int64_t runs;           // contiguous runs per output
  Walk<Index, 1> run;     // where each of them starts
  int64_t length;         // of a run
  int64_t piece;          // a run is cut into pieces of so many elements
  Divider<Index> cuts;    // pieces per run
  Divider<Index> pieces;  // pieces per output
  int group;              // threads per piece: a power of two

  __host__ __device__ int64_t total() const { return outputs * int64_t(pieces.divisor); }
};

// The sum of a vector's elements, pairwise.
template <class In, int N>
__device__ __forceinline__ compute_t<In> vector_sum(const Vec<In, N>& v) {
  compute_t<In> part[N];
#pragma unroll
  for (int e = 0; e < N; ++e) part[e] = widen(v.value[e]);
#pragma unroll
  for (int width = N / 2; width > 0; width /= 2) {
#pragma unroll
    for (int e = 0; e < width; ++e) part[e] += part[e + width];
  }
  return part[0];
}

// Adds n contiguous elements with the threads lane, lane + group, ...
template <class In>
__device__ __forceinline__ compute_t<In> sum_run(const In* x, int n, int lane, int group) {
  using A = compute_t<In>;
  constexpr int N = kVec<In>, kUnroll = 4;
  // Elements up to the first 16-byte boundary, whole vectors, and what is left.
  const int past = int(reinterpret_cast<uintptr_t>(x) % 16 / sizeof(In));
  const int head = min(n, (N - past) % N), vectors = (n - head) / N;
  const In* body = x + head;
  A sum[kUnroll] = {};
  int j = lane;
  // All loads of a trip come before the first addition, without a condition between them.
  Vec<In, N> v[kUnroll];
  for (; j + (kUnroll - 1) * group < vectors; j += kUnroll * group) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) v[u] = load<N>(body + int64_t(j + u * group) * N);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) sum[u] += vector_sum(v[u]);
  }
  if (j < vectors) {
#pragma unroll
    for (int u = 0; u < kUnroll - 1; ++u) {  // past the end, repeat the last vector and drop it
      v[u] = load<N>(body + int64_t(min(j + u * group, vectors - 1)) * N);
    }
#pragma unroll
    for (int u = 0; u < kUnroll - 1; ++u) {
      if (j + u * group < vectors) sum[u] += vector_sum(v[u]);
    }
  }
  for (j = lane; j < head; j += group) sum[1] += widen(x[j]);
  for (j = head + vectors * N + lane; j < n; j += group) sum[2] += widen(x[j]);
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

// 32 registers: all of a multiprocessor's 2048 threads fit, so that one wave of pieces does it.
template <class In, class Index, class Out>
__global__ void __launch_bounds__(1024, 2) row_sums(const RowParams<In, Index> p, Out* out) {
  const int lane = threadIdx.x & (p.group - 1);
  const int per_block = blockDim.x / unsigned(p.group);
  const int64_t which = int64_t(blockIdx.x) * per_block + threadIdx.x / unsigned(p.group);
  compute_t<In> sum = 0;
  const bool exists = which < p.total();
  await_previous();  // x may be the first launch's partial sums
  if (exists) {
    const Index output = p.pieces.divide(Index(which));
    const Index within = Index(which) - output * p.pieces.divisor;
    const Index run = p.cuts.divide(within);
    const int64_t first = int64_t(within - run * p.cuts.divisor) * p.piece;
    Index inner;
    const In* start = p.x + p.kept.offset(0, output, inner) + p.run.offset(0, run, inner) + first;
    sum = sum_run(start, int(min(p.piece, p.length - first)), lane, p.group);
  }
  release_next();
  sum = group_sum(sum, p.group);
  if (lane == 0 && exists) out[which] = narrow<Out>(sum);
}

template <class In, class Index, class Out>
void sum_rows(const RowParams<In, Index>& p, Out* out, cudaStream_t stream, bool second = false) {
  const int asked = tuning.block;
  const int block = std::max(asked ? asked : 256, p.group);
  const int64_t blocks = ceil_div(p.total(), block / p.group);
  launch(row_sums<In, Index, Out>, {dim3(unsigned(blocks)), dim3(block), stream, 0, second}, p,
         out);
}

// Threads per run: as many as keep four loads each in flight and are nearly all busy in every trip.
template <class In>
int row_group(int64_t length) {
  const int64_t vectors = std::max<int64_t>(length / kVec<In>, 1);
  int group = 512;
  while (group > 4 && vectors * 5 < ceil_div(vectors, 4 * group) * 4 * group * 4) group /= 2;
  return group;
}

// Cuts runs into pieces: enough of them to fill the device when there are few, each long enough to
// be worth a block, at multiples of a vector.
template <class In, class Index>
void cut_runs(RowParams<In, Index>& p) {
  const int64_t wanted = ceil_div(int64_t(multiprocessors()) * 4, p.outputs * p.runs);
  const int64_t most = ceil_div(p.length, 16384);
  // At least so many that the length of a piece fits an int.
  const int64_t least = ceil_div(p.length, int64_t(1) << 30);
  p.piece = ceil_div(ceil_div(p.length, std::max(std::min(wanted, most), least)), 64) * 64;
  const int64_t cuts = ceil_div(p.length, p.piece);
  p.cuts = Divider<Index>(cuts);
  p.pieces = Divider<Index>(cuts * p.runs);
  p.group = row_group<In>(std::min(p.piece, p.length));
}

// Columns: nothing but loads.
template <class T>
struct ColumnReader {
  using Element = T;
  static constexpr int kBlocks = 2;
  Matrix<const T> x;
  int64_t batch_stride;

  struct Cursor {
    const T* x;
  };

  __device__ __forceinline__ Cursor start(int64_t batch, int64_t row, int64_t col) const {
    return {x.at(row, col) + batch * batch_stride};
  }
  __device__ __forceinline__ Cursor skip(const Cursor& c, int64_t rows) const {
    return {c.x + rows * x.row_stride};
  }

  template <int N>
  struct Loaded {
    Vec<T, N> x;
  };

  template <int N, bool Whole>
  __device__ __forceinline__ Loaded<N> load(const Cursor& c, const Span& span) const {
    if constexpr (Whole) return {opforge::load<N>(c.x)};
    Loaded<N> result;
#pragma unroll
    for (int e = 0; e < N; ++e) {
      if (e >= span.lo && e < span.hi) result.x.value[e] = c.x[e];
    }
    return result;
  }

  template <int N, bool Whole>
  __device__ __forceinline__ void use(const Cursor&, const Span& span, const Loaded<N>& in,
                                      compute_t<T> (&sum)[N]) const {
#pragma unroll
    for (int e = 0; e < N; ++e) {
      if (Whole || (e >= span.lo && e < span.hi)) sum[e] += widen(in.x.value[e]);
    }
  }
};

template <class T, class Index>
struct ScatteredParams {
  const T* x;
  int64_t outputs, length;
  Walk<Index, 1> kept, reduced;
  int group;
};

template <class T, class Index>
__global__ void __launch_bounds__(1024) scattered_sums(const ScatteredParams<T, Index> p, T* out) {
  const int lane = threadIdx.x % p.group;
  const int64_t which = int64_t(blockIdx.x) * (blockDim.x / p.group) + threadIdx.x / p.group;
  compute_t<T> sum = 0;
  Index inner;
  if (which < p.outputs) {
    const T* start = p.x + p.kept.offset(0, Index(which), inner);
#pragma unroll 4
    for (int64_t j = lane; j < p.length; j += p.group) {
      sum += widen(start[p.reduced.offset(0, Index(j), inner)]);
    }
  }
  sum = group_sum(sum, p.group);
  if (lane == 0 && which < p.outputs) out[which] = narrow<T>(sum);
}

template <class T, class Index>
void sum_elements(const ScatteredParams<T, Index>& p, T* out, cudaStream_t stream) {
  const int asked = tuning.block;
  const int block = std::max(asked ? asked : 256, p.group);
  const int64_t blocks = ceil_div(p.outputs, block / p.group);
  launch(scattered_sums<T, Index>, {dim3(unsigned(blocks)), dim3(block), stream}, p, out);
}

}  // namespace opforge
