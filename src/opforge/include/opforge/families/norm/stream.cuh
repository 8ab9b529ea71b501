// SPDX-License-Identifier: Apache-2.0
// layer_norm and rms_norm of many long rows, see families/norm/forward.cuh, with no more than a
// relu as their prologue. Forward. Includes no torch header.
//
// Rows go as in row_stream.cuh. A thread keeps the weights and biases of its columns in registers:
//
//   step i    sums of tile i, result of tile i - 1
//
// The variance of 32-bit elements takes a step of its own:
//
//   step i    sums of tile i, squared deviations of tile i - 1, result of tile i - 2
#pragma once

#include <opforge/algorithms/row_stream.cuh>
#include <opforge/algorithms/spread_totals.cuh>
#include <opforge/families/norm/forward.cuh>

namespace opforge {

// Steps from a tile's sums to its result; it stays in the ring for so long.
template <class T, bool Centered>
constexpr int kNormLag = Centered && sizeof(T) > 2 ? 2 : 1;

enum class RowShape { whole, ragged };  // whole: made of aligned vectors

template <class T>
struct NormStream : RowStream<T> {
  using A = compute_t<T>;
  A *mean, *rstd;  // null: not wanted
  Param weight, bias;
  A offset, eps, share;  // as in NormForward
};

// A thread's columns: N of them for a vector, 1 for an end.
template <int N, class A>
struct StreamColumns {
  bool exists;
  int col;
  A weight[N], bias[N];
};

// A thread's columns of the rows of one class, and what is done with them.
template <class T, bool Centered, bool Ragged, bool Relu>
struct StreamWork {
  using A = compute_t<T>;
  static constexpr int N = kVec<T>, K = kStreamColumns / N, R = kStreamRows<T>;
  // Mean and variance in one step, see PivotMoments.
  static constexpr bool kOneStep = Centered && kNormLag<T, Centered> == 1;
  static constexpr int kSums = Centered ? 2 * R : R;  // the second half are of squares
  const NormStream<T>& p;
  const StreamTiles<T, Ragged>& tiles;
  Ring<T, 1>& ring;
  const Columns<N>& columns;
  StreamColumns<N, A> (&vector)[K];
  StreamColumns<1, A>& end;
  const int& index;  // of the thread
  const int& rank;   // of the block in its cluster

  __device__ __forceinline__ void load_params() const {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int i = index + k * p.plan.group;
      load_params(vector[k], columns.vector(i), i < columns.vectors);
    }
    if (Ragged) load_params(end, columns.end(index), index < columns.ends);
  }

  // The sums of the rows of tile i, which begins at `stage`, or of their squares if there is no
  // mean.
  __device__ __forceinline__ void add_up(int stage, int i, const Packed<T, 1> (&first)[R],
                                         A (&pivot)[R], A (&sums)[kSums]) const {
#pragma unroll
    for (int r = 0; r < R; ++r) {
      if constexpr (Centered) {
        A element[1];
        widen(Relu ? relu_of(first[r]) : first[r], element);
        pivot[r] = pivot_of(element[0]);
        const int at = tiles.begin(stage, r, i);
        each([&]<int M>(const StreamColumns<M, A>& owned) {
          A v[M];
          fetch(owned, at, v);
          if constexpr (kOneStep) {
            PivotMoments<A> some;
            some.add(pivot[r], v);
            sums[r] += owned.exists ? some.sum : A(0);
            sums[R + r] += owned.exists ? some.squares : A(0);
          } else {
            const A some = sum_from(pivot[r], v);
            sums[r] += owned.exists ? some : A(0);
          }
        });
      } else {
        sums[r] = squares(stage, r, i, A(0));
      }
    }
  }

  // The squared deviations from the mean.
  __device__ __forceinline__ A squares(int stage, int r, int i, A mean) const {
    A sum = 0;
    const int at = tiles.begin(stage, r, i);
    each([&]<int M>(const StreamColumns<M, A>& owned) {
      A v[M];
      fetch(owned, at, v);
      const A some = squares_from<Centered>(mean, v);
      sum += owned.exists ? some : A(0);
    });
    return sum;
  }

  // Row r of tile i, given its statistics. `out`: of the first row of the tile.
  __device__ __forceinline__ void write(int stage, int r, int i, A mean, A variance, T* out) const {
    const int at = tiles.begin(stage, r, i);
    const bool exists = tiles.exists(r, i);
    const Scale<A> scale{mean, rsqrt(variance + p.eps)};
    const auto result = [&]<int M>(const StreamColumns<M, A>& owned) {
      A v[M];
      fetch(owned, at, v);
      normalise<Centered>(v, scale);
      weigh<Centered>(v, owned.weight, owned.bias);
      return narrow<T>(v);
    };
    T* const to = out + r * p.across;
    Packed<T, N> results[K];  // all of them first, so that no store holds up a load
#pragma unroll
    for (int k = 0; k < K; ++k) results[k] = result(vector[k]);
#pragma unroll
    for (int k = 0; k < K; ++k) {
      store_if<N>(exists && vector[k].exists, to + vector[k].col, results[k]);
    }
    if (Ragged && exists && end.exists) store<1>(to + end.col, result(end));
    if (exists && index == 0 && rank == 0) {
      const int row = tiles.row(r, i);
      if (p.mean != nullptr) p.mean[row] = scale.mean;
      if (p.rstd != nullptr) p.rstd[row] = scale.rstd;
    }
  }

 private:
  template <int M>
  __device__ __forceinline__ void load_params(StreamColumns<M, A>& owned, int64_t col,
                                              bool exists) const {
    owned.exists = exists;
    owned.col = exists ? int(col) : columns.head;
    fill(owned.weight, A(1));
    fill(owned.bias, A(0));  // PyTorch adds it, too: there is no -0.0
    if (!exists) return;
    if (p.weight) read<T>(p.weight, tiles.first_col + col, owned.weight);
    if (Centered && p.bias) read<T>(p.bias, tiles.first_col + col, owned.bias);
    if (p.offset != A(0)) {
#pragma unroll
      for (int e = 0; e < M; ++e) owned.weight[e] += p.offset;
    }
  }

  template <class Body>
  __device__ __forceinline__ void each(Body&& body) const {
#pragma unroll
    for (int k = 0; k < K; ++k) body(vector[k]);
    if constexpr (Ragged) {
      if (end.exists) body(end);
    }
  }

  template <int M>
  __device__ __forceinline__ void fetch(const StreamColumns<M, A>& owned, int at, A (&v)[M]) const {
    const auto packed = load_packed<M>(reinterpret_cast<const T*>(ring.memory() + at) + owned.col);
    widen(Relu ? relu_of(packed) : packed, v);
  }
};

// Kind: plain, or relu.
template <class T, bool Centered, RowShape Shape, ForwardKind Kind>
__global__ void __launch_bounds__(kStreamThreads + kWarp, 1) norm_stream(const NormStream<T> p) {
  using A = compute_t<T>;
  constexpr bool Ragged = Shape == RowShape::ragged;
  using Work = StreamWork<T, Centered, Ragged, Kind == ForwardKind::relu>;
  constexpr int N = Work::N, K = Work::K, R = Work::R, kSums = Work::kSums;
  constexpr int kLag = kNormLag<T, Centered>;
  constexpr bool kOneStep = Work::kOneStep;
  const RowPlan& plan = p.plan;
  Ring<T, 1> ring(p.ring, plan.block / kWarp);
  SpreadTotals<A, kSums, kStreamThreads / kWarp, kMaxCluster> totals(plan.group, plan.cluster);
  cluster_sync();
  const int rank = cluster_rank(), index = int(threadIdx.x);
  StreamTiles<T, Ragged> tiles(p);
  const int64_t first_col = tiles.first_col;
  RingPlace ahead, behind;
  unsigned round = 0;  // of the totals
  while (tiles.next()) {
    const int count = tiles.count;
    if (index >= plan.block) {
      for (int i = 0; i < count; ++i) ring.fill(ahead, tiles.row(0, i), first_col, tiles.width);
      continue;
    }
    const Columns<N> columns(tiles.start(), tiles.width);
    StreamColumns<N, A> vector[K];
    StreamColumns<1, A> end;
    const Work work{p, tiles, ring, columns, vector, end, index, rank};
    work.load_params();
    // Sums are taken of differences from the first element of a row, which only the first block has
    // in its ring: those of the next tile are fetched ahead of time.
    Packed<T, 1> first[R] = {};
    const auto fetch_first = [&](int i) {
#pragma unroll
      for (int r = 0; r < R; ++r) {
        if (tiles.exists(r, i)) first[r] = load_packed<1>(p.ring.source[0].at(tiles.row(r, i)));
      }
    };
    if (Centered) fetch_first(0);

    T* out = p.y + tiles.row(0, 0) * plan.cols + first_col;
    int here = 0, last = 0, oldest = 0;  // where tiles i, i - 1, i - 2 begin
    A pivot[R] = {}, mean[R] = {}, old_mean[R] = {};
    for (int i = 0; i < count + kLag; ++i) {
      A sums[kSums] = {}, total[kSums] = {}, variance[R];
      A old_pivot[R];
      oldest = last;
      last = here;
#pragma unroll
      for (int r = 0; r < R; ++r) {
        old_pivot[r] = pivot[r];
        old_mean[r] = mean[r];
      }
      if (i < count) {
        ring.await(ahead);
        here = ahead.stage * p.ring.tile_bytes;
        ahead.next(p.ring.stages);
        work.add_up(here, i, first, pivot, sums);
        if (Centered) fetch_first(i + 1);
      }
      if (i > 0) totals.get(total, round - 1);
#pragma unroll
      for (int r = 0; r < R; ++r) variance[r] = total[kSums - R + r] * p.share;
      if (Centered && i > 0 && i <= count) {
        bool precise[R], all = true;
#pragma unroll
        for (int r = 0; r < R; ++r) {
          mean[r] = fma(total[r], p.share, old_pivot[r]);
          if constexpr (kOneStep) {
            const PivotMoments<A> moments{total[r], total[R + r]};
            precise[r] = moments.precise(p.share);
            variance[r] = moments.variance(p.share);
            all = all && precise[r];
          } else {
            sums[R + r] = work.squares(last, r, i - 1, mean[r]);
          }
        }
        if (kOneStep && !all) {  // the same in all threads: once more, from the mean
          A again[kSums] = {};
#pragma unroll
          for (int r = 0; r < R; ++r) again[r] = work.squares(last, r, i - 1, mean[r]);
          totals.put(again, round);
          totals.get(again, round++);
#pragma unroll
          for (int r = 0; r < R; ++r) {
            if (!precise[r]) variance[r] = again[r] * p.share;
          }
        }
      }
      if (i + 1 < count + kLag) totals.put(sums, round++);
      if (i < kLag) continue;
#pragma unroll
      for (int r = 0; r < R; ++r) {
        work.write(kLag == 2 ? oldest : last, r, i - kLag, kLag == 2 ? old_mean[r] : mean[r],
                   variance[r], out);
      }
      ring.release(behind);
      behind.next(p.ring.stages);
      out += p.step;
    }
  }
}

}  // namespace opforge
