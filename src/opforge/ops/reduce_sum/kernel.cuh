// SPDX-License-Identifier: Apache-2.0
// reduce_sum reads x once and writes next to nothing: its floor is a read of x.
//
// Three shapes of the same sum, by how x lies in memory:
//   rows      the reduced dims hold contiguous runs: a group of threads per run, 16-byte vectors;
//             several runs, or the pieces of a long one, are added in a second launch;
//   columns   the kept dim is contiguous: opforge/columns.cuh;
//   scattered anything else: a group of threads per output, element by element.
#pragma once

#include <opforge/index.h>
#include <opforge/reduce.h>

#include <opforge/columns.cuh>

namespace opforge {

template <class In>
struct RowParams {
  const In* x;
  int64_t outputs;         // kept elements
  Walk<uint64_t, 1> kept;  // where each output's elements start
  int64_t runs;            // contiguous runs per output
  Walk<uint64_t, 1> run;   // where each of them starts
  int64_t length;          // of a run
  int64_t cuts, piece;     // a run is cut into `cuts` pieces of `piece` elements
  int group;               // threads per piece: a power of two

  __host__ __device__ int64_t pieces() const { return runs * cuts; }
};

// Adds n contiguous elements with the threads lane, lane + group, ...
template <class In>
__device__ __forceinline__ compute_t<In> sum_run(const In* x, int64_t n, int lane, int group) {
  using A = compute_t<In>;
  constexpr int N = kVec<In>, kUnroll = 4;
  // Elements up to the first 16-byte boundary, whole vectors, and what is left.
  const int64_t past = reinterpret_cast<uintptr_t>(x) % 16 / sizeof(In);
  const int64_t head = min(n, (N - past) % N), vectors = (n - head) / N;
  const In* body = x + head;
  A sum[kUnroll] = {};
  for (int64_t j = lane; j < vectors; j += kUnroll * group) {
    Vec<In, N> v[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (j + u * group < vectors) v[u] = load<N>(body + (j + u * group) * N);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (j + u * group < vectors) {
        A part[N];
#pragma unroll
        for (int e = 0; e < N; ++e) part[e] = widen(v[u].value[e]);
#pragma unroll
        for (int width = N / 2; width > 0; width /= 2) {
#pragma unroll
          for (int e = 0; e < width; ++e) part[e] += part[e + width];
        }
        sum[u] += part[0];
      }
    }
  }
  A ends = A(0);
  for (int64_t j = lane; j < head; j += group) ends += widen(x[j]);
  for (int64_t j = head + vectors * N + lane; j < n; j += group) ends += widen(x[j]);
  return (sum[0] + sum[1]) + (sum[2] + sum[3]) + ends;
}

template <class In, class Out>
__global__ void row_sums(const RowParams<In> p, Out* out) {
  const int lane = threadIdx.x % p.group;
  const int64_t which = int64_t(blockIdx.x) * (blockDim.x / p.group) + threadIdx.x / p.group;
  compute_t<In> sum = 0;
  const bool exists = which < p.outputs * p.pieces();
  if (exists) {
    const int64_t output = which / p.pieces(), within = which % p.pieces();
    const int64_t first = within % p.cuts * p.piece;
    uint64_t inner;
    const In* start = p.x + p.kept.offset(0, uint64_t(output), inner) +
                      p.run.offset(0, uint64_t(within / p.cuts), inner) + first;
    sum = sum_run(start, min(p.piece, p.length - first), lane, p.group);
  }
  sum = group_sum(sum, p.group);
  if (lane == 0 && exists) out[which] = narrow<Out>(sum);
}

template <class In, class Out>
void sum_rows(const RowParams<In>& p, Out* out, cudaStream_t stream) {
  const int block = std::max(tuning.block ? tuning.block : 256, p.group);
  const int64_t blocks = ceil_div(p.outputs * p.pieces(), block / p.group);
  launch(row_sums<In, Out>, {dim3(unsigned(blocks)), dim3(block), stream}, p, out);
}

// Four vectors per thread and trip keep enough loads in flight.
template <class In>
int row_group(int64_t length) {
  int group = 4;
  while (group < 512 && int64_t(group) * 2 * 4 * kVec<In> <= length) group *= 2;
  return group;
}

// Cuts runs into pieces: enough of them to fill the device when there are few, each long enough to
// be worth a block, at multiples of a vector.
template <class In>
void cut_runs(RowParams<In>& p) {
  const int64_t wanted = ceil_div(int64_t(multiprocessors()) * 4, p.outputs * p.runs);
  const int64_t most = ceil_div(p.length, 16384);
  p.piece = ceil_div(ceil_div(p.length, std::max<int64_t>(std::min(wanted, most), 1)), 64) * 64;
  p.cuts = ceil_div(p.length, p.piece);
  p.group = row_group<In>(std::min(p.piece, p.length));
}

// Columns: nothing but loads.
template <class T>
struct ColumnReader {
  using Element = T;
  Matrix<const T> x;
  int64_t batch_stride;

  template <int N>
  struct Loaded {
    Vec<T, N> x;
  };

  template <int N, bool Whole>
  __device__ __forceinline__ Loaded<N> load(const Span& at) const {
    const T* address = x.data + at.batch * batch_stride + at.row * x.row_stride + at.col;
    if constexpr (Whole) return {opforge::load<N>(address)};
    Loaded<N> result;
#pragma unroll
    for (int e = 0; e < N; ++e) {
      if (e >= at.lo && e < at.hi) result.x.value[e] = address[e];
    }
    return result;
  }

  template <int N, bool Whole>
  __device__ __forceinline__ void use(const Span& at, const Loaded<N>& in,
                                      compute_t<T> (&sum)[N]) const {
#pragma unroll
    for (int e = 0; e < N; ++e) {
      if (Whole || (e >= at.lo && e < at.hi)) sum[e] += widen(in.x.value[e]);
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
__global__ void scattered_sums(const ScatteredParams<T, Index> p, T* out) {
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
  const int block = std::max(tuning.block ? tuning.block : 256, p.group);
  const int64_t blocks = ceil_div(p.outputs, block / p.group);
  launch(scattered_sums<T, Index>, {dim3(unsigned(blocks)), dim3(block), stream}, p, out);
}

}  // namespace opforge
