// SPDX-License-Identifier: Apache-2.0
// layer_norm and rms_norm of many long rows, see families/norm/forward.cuh, with nothing around
// them but a relu before. Forward. Includes no torch header.
//
// Rows go as in row_stream.cuh. A thread keeps the weights and biases of its columns in registers:
//
//   turn i    sums of tile i, result of tile i - 1
//             (elements of 32 bits around their mean: sums of tile i, squares around the mean of
//             tile i - 1, result of tile i - 2)
#pragma once

#include <opforge/algorithms/row_stream.cuh>
#include <opforge/algorithms/spread_totals.cuh>
#include <opforge/families/norm/forward.cuh>

namespace opforge {

// Turns from a tile's sums to its result; it stays in the ring for so long.
template <class T, bool Centered>
constexpr int kNormLag = Centered && sizeof(T) > 2 ? 2 : 1;

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

template <class T, bool Centered, bool Ragged, bool Relu>
__global__ void __launch_bounds__(kStreamThreads + kWarp, 1) norm_stream(const NormStream<T> p) {
  using A = compute_t<T>;
  constexpr int N = kVec<T>, K = kStreamColumns / N, R = kStreamRows<T>;
  constexpr int kLag = kNormLag<T, Centered>;
  constexpr bool kOneStep =
      Centered && kLag == 1;                   // mean and variance in one step, see AroundPivot
  constexpr int kSums = Centered ? 2 * R : R;  // of a turn; the second half are of squares
  const RowPlan& plan = p.plan;
  Ring<T, 1> ring(p.ring, plan.block / kWarp);
  SpreadTotals<A, kSums, kStreamThreads / kWarp, kMaxCluster> totals(plan.group, plan.cluster);
  cluster_sync();
  const int rank = cluster_rank(), index = int(threadIdx.x);
  StreamTiles<T, Ragged> tiles(p);
  const int64_t first_col = tiles.first_col;
  RingPlace ahead, behind;
  unsigned turn = 0;
  while (tiles.next()) {
    const int turns = tiles.turns;
    if (index >= plan.block) {
      for (int i = 0; i < turns; ++i) ring.fill(ahead, tiles.row(0, i), first_col, tiles.width);
      continue;
    }
    const Columns<N> columns(tiles.start(), tiles.width);
    StreamColumns<N, A> vector[K];
    StreamColumns<1, A> end;
    const auto own = [&]<int M>(StreamColumns<M, A>& owned, int64_t col, bool exists) {
      owned.exists = exists;
      owned.col = exists ? int(col) : columns.head;
      fill(owned.weight, A(1));
      fill(owned.bias, A(0));  // PyTorch adds it, too: there is no -0.0
      if (!exists) return;
      if (p.weight) read<T>(p.weight, first_col + col, owned.weight);
      if (Centered && p.bias) read<T>(p.bias, first_col + col, owned.bias);
      if (p.offset != A(0)) {
#pragma unroll
        for (int e = 0; e < M; ++e) owned.weight[e] += p.offset;
      }
    };
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int i = index + k * plan.group;
      own(vector[k], columns.vector(i), i < columns.vectors);
    }
    if (Ragged) own(end, columns.end(index), index < columns.ends);
    const auto each = [&](auto&& body) {
#pragma unroll
      for (int k = 0; k < K; ++k) body(vector[k]);
      if constexpr (Ragged) {
        if (end.exists) body(end);
      }
    };

    const auto fetch = [&]<int M>(const StreamColumns<M, A>& owned, int at, A(&v)[M]) {
      const auto packed =
          load_packed<M>(reinterpret_cast<const T*>(ring.memory() + at) + owned.col);
      widen(Relu ? relu_of(packed) : packed, v);
    };
    // Sums are taken around the first element of a row, which only the first block has in its ring:
    // those of the next tile are fetched ahead of time.
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
    // What this thread has of the squares of row r of a tile around its mean.
    const auto squares = [&](int stage, int r, int i) {
      A sum = 0;
      const int at = tiles.begin(stage, r, i);
      each([&]<int M>(const StreamColumns<M, A>& owned) {
        A v[M];
        fetch(owned, at, v);
        const A some = squares_around<Centered>(mean[r], v);
        sum += owned.exists ? some : A(0);
      });
      return sum;
    };
    for (int i = 0; i < turns + kLag; ++i) {
      A sums[kSums] = {}, total[kSums] = {}, variance[R];
      A old_pivot[R];
      oldest = last;
      last = here;
#pragma unroll
      for (int r = 0; r < R; ++r) {
        old_pivot[r] = pivot[r];
        old_mean[r] = mean[r];
      }
      if (i < turns) {
        ring.await(ahead);
        here = ahead.stage * p.ring.tile_bytes;
        ahead.next(p.ring.stages);
#pragma unroll
        for (int r = 0; r < R; ++r) {
          if constexpr (Centered) {
            A element[1];
            widen(Relu ? relu_of(first[r]) : first[r], element);
            pivot[r] = pivot_of(element[0]);
            const int at = tiles.begin(here, r, i);
            each([&]<int M>(const StreamColumns<M, A>& owned) {
              A v[M];
              fetch(owned, at, v);
              if constexpr (kOneStep) {
                AroundPivot<A> some;
                some.add(pivot[r], v);
                sums[r] += owned.exists ? some.sum : A(0);
                sums[R + r] += owned.exists ? some.squares : A(0);
              } else {
                const A some = sum_around(pivot[r], v);
                sums[r] += owned.exists ? some : A(0);
              }
            });
          } else {
            sums[r] = squares(here, r, i);
          }
        }
        if (Centered) fetch_first(i + 1);
      }
      if (i > 0) totals.get(total, turn - 1);
#pragma unroll
      for (int r = 0; r < R; ++r) variance[r] = total[kSums - R + r] * p.share;
      if (Centered && i > 0 && i <= turns) {
        bool precise[R], all = true;
#pragma unroll
        for (int r = 0; r < R; ++r) {
          mean[r] = fma(total[r], p.share, old_pivot[r]);
          if constexpr (kOneStep) {
            const AroundPivot<A> moments{total[r], total[R + r]};
            precise[r] = moments.precise(p.share);
            variance[r] = moments.variance(p.share);
            all = all && precise[r];
          } else {
            sums[R + r] = squares(last, r, i - 1);
          }
        }
        if (kOneStep && !all) {  // the same in all threads: a turn more, around the mean
          A again[kSums] = {};
#pragma unroll
          for (int r = 0; r < R; ++r) again[r] = squares(last, r, i - 1);
          totals.put(again, turn);
          totals.get(again, turn++);
#pragma unroll
          for (int r = 0; r < R; ++r) {
            if (!precise[r]) variance[r] = again[r] * p.share;
          }
        }
      }
      if (i + 1 < turns + kLag) totals.put(sums, turn++);
      if (i < kLag) continue;
#pragma unroll
      for (int r = 0; r < R; ++r) {
        const int at = tiles.begin(kLag == 2 ? oldest : last, r, i - kLag);
        const bool exists = tiles.exists(r, i - kLag);
        const Scale<A> scale{kLag == 2 ? old_mean[r] : mean[r], rsqrt(variance[r] + p.eps)};
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
          const int one = tiles.row(r, i - kLag);
          if (p.mean != nullptr) p.mean[one] = scale.mean;
          if (p.rstd != nullptr) p.rstd[one] = scale.rstd;
        }
      }
      ring.release(behind);
      behind.next(p.ring.stages);
      out += p.step;
    }
  }
}

}  // namespace opforge
