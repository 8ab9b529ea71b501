// SPDX-License-Identifier: Apache-2.0
// The gradients of layer_norm and rms_norm, see families/norm/forward.cuh. Includes no torch
// header.
//
// A block to a multiprocessor (or a cluster of them, for long rows) stays for the whole kernel and
// takes tiles of rows from a ring, which a warp of its own fills. A thread has the same columns in
// every row, so it keeps their weights and adds up their weight gradients in registers. A row is
// read twice from shared memory: for its total, and, while the next one's total is under way, for
// its result:
//
//   step i    totals of tile i go out; result of tile i - 1, whose totals have come in
//
// At the end the weight gradients of a block's threads are added up where the ring was. Those of
// the blocks go to algorithms/partial_sums.cuh.
//
// Vectors begin at 16-byte boundaries of memory, so if rows do not all begin at one, a thread's
// columns depend on the row. Rows of a class, see classes_of(), are taken together.
#pragma once

#include <opforge/algorithms/row_totals.cuh>
#include <opforge/families/norm/backward_columns.cuh>
#include <opforge/families/norm/dots.cuh>
#include <opforge/families/norm/forward.cuh>

namespace opforge {

// One for each row that a thread works on at once.
template <class One, int R>
struct PerRow {
  One row[R];
  __device__ __forceinline__ void operator+=(const PerRow& other) {
#pragma unroll
    for (int r = 0; r < R; ++r) row[r] += other.row[r];
  }
};

// What the epilogue keeps of a vector, and, from bit 16 on, the prologue.
template <int N, BackwardKind kind, class T>
__device__ __forceinline__ uint32_t kept_masks(const NormBackward<T>& p, int64_t flat) {
  const auto kept = [&](const auto& which) {
    return which.template kept<N, (N > 1)>(which.key(), flat);
  };
  if constexpr (kind == BackwardKind::dropout) return kept(p.epilogue);
  return (p.epilogue.dropout ? kept(p.epilogue) : 0) |
         (p.prologue.dropout ? kept(p.prologue) << 16 : 0);
}

// Reads a row from the ring.
template <class T, bool Centered, BackwardKind kind>
struct RowReader {
  using A = compute_t<T>;
  static constexpr bool kAny = kind == BackwardKind::any;
  static constexpr bool kDropout = kAny || kind == BackwardKind::dropout;
  const NormBackward<T>& p;
  const BackwardPlace& place;
  const unsigned char (&zeros)[16];  // shared memory to read where there is nothing

  // Normalised values and the gradients of the norm's result; 0 where there is nothing.
  template <int M>
  __device__ __forceinline__ void operator()(const OwnedColumns<M, A>& owned,
                                             const unsigned char* at, bool exists, int col,
                                             uint32_t kept, A mean, A rstd, A (&normed)[M],
                                             A (&grad)[M]) const {
    exists = exists && owned.exists;
    const unsigned char* const h_at = exists ? at + p.ring.tile_bytes : zeros;
    if (!exists) at = zeros;  // no branch: loads go out one after the other
    widen(load_packed<M>(reinterpret_cast<const T*>(at)), grad);
    Packed<T, M> h = load_packed<M>(reinterpret_cast<const T*>(h_at));
    const bool relu = kDropout && p.prologue.relu && !(kAny && p.summed);
    if (kind == BackwardKind::relu || relu) h = relu_of(h);
    widen(h, normed);
    if (kAny && !p.summed && p.prologue.dropout) {
      p.prologue.drop(kept >> 16, normed);
      widen(narrow<T>(normed), normed);  // as the forward had it
    }
    normalise<Centered>(normed, Scale<A>{mean, rstd});
    if (kind == BackwardKind::dropout || (kAny && p.epilogue.dropout)) p.epilogue.drop(kept, grad);
    if (kAny && p.epilogue.relu) {
      A shift[M] = {};
      if (p.bias && owned.exists) read<T>(p.bias, place.first_col + col, shift);
#pragma unroll
      for (int e = 0; e < M; ++e) {
        const A result = normed[e] * owned.scale[e] + shift[e];
        grad[e] = result <= A(0) ? A(0) : grad[e];
      }
    }
  }
};

// A thread's work on the tiles of one class.
template <class T, bool Centered, BackwardKind kind, bool Ragged>
struct ClassGradients {
  using A = compute_t<T>;
  static constexpr int K = ThreadColumns<T, Ragged>::K, R = kRowsPerThread<T, Centered, kind>;
  static constexpr bool kAny = kind == BackwardKind::any;
  static constexpr bool kDropout = kAny || kind == BackwardKind::dropout;
  using Total = PerRow<Dots<A, Centered>, R>;
  using Totals = RowTotals<Total, kBackwardThreads / kWarp, kMaxCluster>;
  const NormBackward<T>& p;
  const BackwardPlace& place;
  ThreadColumns<T, Ragged>& own;
  const unsigned char (&zeros)[16];  // see RowReader
  Ring<T, kNormSources>& ring;
  Totals& totals;
  RingPlace &ahead, &behind;  // where sums and results are in the ring
  const unsigned& round;      // of the totals, at the first tile
  const int& tiles;
  const int64_t &row, &apart;  // this thread's first row, and from one in a tile to the next
  const int& from;             // where the first begins in a stage, in bytes

  // Writes the gradients of x and residual; `own` keeps the sums for those of weight and bias.
  __device__ __forceinline__ void find() const {
    int counts[R];  // how many tiles have this row of theirs
    count(counts);
    const int64_t below = apart * p.plan.cols;
    const int below_bytes = p.groups * ring.pitch();
    int64_t flat = row * p.plan.cols + place.first_col;  // of the row that is behind
    const A *mean_at = p.mean + row, *rstd_at = p.rstd + row;
    Scale<A> next[R] = {}, now[R] = {};
    const auto fetch_statistics = [&](int i) {
#pragma unroll
      for (int r = 0; r < R; ++r) {
        if (i >= counts[r]) continue;
        if (Centered) next[r].mean = mean_at[r * apart];
        next[r].rstd = rstd_at[r * apart];
      }
      mean_at += p.jump;
      rstd_at += p.jump;
    };
    fetch_statistics(0);
    Total put;
    uint32_t kept[K + 1] = {}, old_kept[K + 1];  // made once for both times a row is read
    for (int i = 0; i <= tiles; ++i) {
      Scale<A> old[R];
      const Total old_put = put;
#pragma unroll
      for (int k = 0; k <= K; ++k) old_kept[k] = kept[k];
#pragma unroll
      for (int r = 0; r < R; ++r) old[r] = now[r];
      if (i < tiles) {
#pragma unroll
        for (int r = 0; r < R; ++r) now[r] = next[r];
        fetch_statistics(i + 1);  // ahead of time, for its latency
        ring.await(ahead);
        const int64_t here = flat + (i > 0 ? p.step : 0);
        const Total total = sum(i, counts, ring.stage(ahead) + from, below_bytes, here, now, kept);
        ahead.next(p.ring.stages);
        put = totals.put(total, round + i);
      }
      if (i == 0) continue;
      const Total total = totals.get(old_put, round + i - 1);
      write(i, counts, ring.stage(behind) + from, below_bytes, flat, below, old, old_kept, total);
      ring.release(behind);
      behind.next(p.ring.stages);
      flat += p.step;
    }
  }

 private:
  __device__ __forceinline__ void count(int (&counts)[R]) const {
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const int64_t one = row + r * apart;
      const bool exists = place.within + r * p.groups < p.ring.height && one < p.plan.rows;
      counts[r] = exists ? int(min(int64_t(tiles), ceil_div(p.plan.rows - one, p.jump))) : 0;
    }
  }

  // Adds up the thread's rows of tile i, which begin at `at` in the ring and at `flat` in a result,
  // and down its columns.
  __device__ __forceinline__ Total sum(int i, const int (&counts)[R], const unsigned char* at,
                                       int below_bytes, int64_t flat, const Scale<A> (&scale)[R],
                                       uint32_t (&kept)[K + 1]) const {
    Total total;
    const RowReader<T, Centered, kind> fetch{p, place, zeros};
    own.each([&]<int M>(OwnedColumns<M, A>& owned, int k, int col) {
      if constexpr (kDropout) kept[k] = kept_masks<M, kind>(p, flat + col);
#pragma unroll
      for (int r = 0; r < R; ++r) {
        A normed[M], grad[M];
        fetch(owned, at + r * below_bytes + col * int(sizeof(T)), i < counts[r], col, kept[k],
              scale[r].mean, scale[r].rstd, normed, grad);
        auto& dots = total.row[r];
#pragma unroll
        for (int e = 0; e < M; ++e) {
          owned.weight_sum[e] = fma(grad[e], normed[e], owned.weight_sum[e]);
          if constexpr (Centered) owned.bias_sum[e] += grad[e];
          grad[e] *= owned.scale[e];
          dots.inner = fma(grad[e], normed[e], dots.inner);
          if constexpr (Centered) dots.sum += grad[e];
        }
      }
    });
    return total;
  }

  // The same rows a step later: writes their gradients, given their totals.
  __device__ __forceinline__ void write(int i, const int (&counts)[R], const unsigned char* at,
                                        int below_bytes, int64_t flat, int64_t below,
                                        const Scale<A> (&scale)[R], const uint32_t (&kept)[K + 1],
                                        const Total& total) const {
    A inner[R], average[R];
#pragma unroll
    for (int r = 0; r < R; ++r) {
      average[r] = total.row[r].sum * p.share;
      inner[r] = -total.row[r].inner * p.share * scale[r].rstd;
      if (!kAny) inner[r] *= scale[r].rstd;  // and normed is left without it
    }
    const RowReader<T, Centered, kind> fetch{p, place, zeros};
    own.each([&]<int M>(const OwnedColumns<M, A>& owned, int k, int col) {
#pragma unroll
      for (int r = 0; r < R; ++r) {
        const int64_t here = flat + r * below + col;
        const unsigned char* const there = at + r * below_bytes + col * int(sizeof(T));
        A normed[M], grad[M];
        fetch(owned, there, i <= counts[r], col, kept[k], scale[r].mean,
              kAny ? scale[r].rstd : A(1), normed, grad);
#pragma unroll
        for (int e = 0; e < M; ++e) {
          const A weighted = product(grad[e], owned.scale[e]);
          if constexpr (Centered) {  // nothing is left of gradients that are all the same
            grad[e] = fma(normed[e], inner[r], (weighted - average[r]) * scale[r].rstd);
          } else {
            grad[e] = fma(weighted, scale[r].rstd, normed[e] * inner[r]);
          }
        }
        if (owned.exists && i <= counts[r]) write_vector(there, here, kept[k], grad, normed);
      }
    });
  }

  // The gradients of residual and x, given that of the norm's input.
  template <int M>
  __device__ __forceinline__ void write_vector(const unsigned char* at, int64_t flat, uint32_t kept,
                                               A (&grad)[M], A (&more)[M]) const {
    const auto source = [&](int s) {
      return load_packed<M>(reinterpret_cast<const T*>(at + s * p.ring.tile_bytes));
    };
    if constexpr (kAny || kind == BackwardKind::residual) {
      if (p.has_grad_h) {
        widen(source(2), more);
#pragma unroll
        for (int e = 0; e < M; ++e) grad[e] += more[e];
      }
    }
    if constexpr (kAny) {
      if (p.grad_residual != nullptr) store<M>(p.grad_residual + flat, narrow<T>(grad));
      if (p.prologue.dropout) p.prologue.drop(kept >> 16, grad);
    }
    Packed<T, M> result = narrow<T>(grad);
    if (kind == BackwardKind::relu || (kDropout && p.prologue.relu)) {
      result = relu_gradient(result, source(kAny && p.has_x ? p.ring.sources - 1 : 1));
    }
    store<M>(p.grad_x + flat, result);
  }
};

template <class T, bool Centered, BackwardKind kind, bool Ragged>
__global__ void __launch_bounds__(kBackwardThreads + kWarp, 1)
    norm_backward_kernel(const NormBackward<T> p) {
  using A = compute_t<T>;
  using Gradients = ClassGradients<T, Centered, kind, Ragged>;
  constexpr int N = kVec<T>, K = kColumnsPerThread<T> / N;
  const RowPlan& plan = p.plan;
  Ring<T, kNormSources> ring(p.ring, plan.block / kWarp);
  typename Gradients::Totals totals(plan.group, plan.cluster, plan.block);
  struct Zeros {
    alignas(16) unsigned char byte[16];
  };
  unsigned char (&zeros)[16] = shared<Zeros>().byte;
  if (threadIdx.x < 16) zeros[threadIdx.x] = 0;
  if (plan.cluster > 1) {
    cluster_sync();
  } else {
    __syncthreads();
  }
  const BackwardPlace place(p);
  BackwardTiles<T, Ragged> classes(p, place.part, place.parts);
  RingPlace ahead, behind;
  unsigned round = 0;
  for (bool first = true; classes.next(); first = false) {
    const int tiles = classes.count;
    const int64_t first_row = classes.first_row;
    const int64_t row = first_row + place.within * int64_t(p.classes);
    const int64_t apart = int64_t(p.groups) * p.classes;
    const Columns<N> columns(p.ring.source[0].at(row) + place.first_col, place.width);
    const int from = ring.offset(first_row, place.within, place.first_col);
    // Not members of `own`: the compiler keeps the whole of an object in memory that has an array
    // with an index, until it has unrolled the loops.
    OwnedColumns<N, A> vector[K];
    OwnedColumns<1, A> end;
    ThreadColumns<T, Ragged> own(columns, vector, end, place.index, p);
    own.begin(place.first_col, !place.fills);
    if (place.fills) {
      for (int i = 0; i < tiles; ++i) {
        ring.fill(ahead, first_row + i * p.jump, place.first_col, place.width);
      }
    } else {
      Gradients{p, place, own, zeros, ring, totals, ahead, behind, round, tiles, row, apart, from}
          .find();
    }
    round += unsigned(tiles);
    BlockSums<T, Centered, Ragged>{p, place, columns, own}.add_up(ring.memory(), first);
  }
  release_next();
}

}  // namespace opforge
