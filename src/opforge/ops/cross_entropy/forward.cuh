// SPDX-License-Identifier: Apache-2.0
// The forward of cross_entropy, row by row; kernel.cuh shows how it works.
#pragma once

#include <opforge/core/launch.h>
#include <opforge/core/vec.h>

#include <cmath>
#include <opforge/algorithms/rows.cuh>

#include "exp_sum.cuh"
#include "labels.cuh"

namespace opforge {

template <class T>
struct CrossEntropyForward {
  using A = compute_t<T>;
  Rows<const T> logits;
  Labels labels;
  A smoothing, z_loss;
  A *losses, *peak, *log_sum;
  unsigned* arrived;  // set to 0 here; cross_entropy_total counts its finished blocks in it

  // `above_pivot`: the sum of x - pivot over the row; for smoothing.
  __device__ __forceinline__ void finish(int64_t row, const ExpSum<T>& total, A at_label, A pivot,
                                         A above_pivot) const {
    const A logs = total.log(), lse = total.peak + logs;
    A loss = (total.peak - at_label) + logs;
    if (smoothing != A(0)) {
      const A others = (total.peak - pivot) - above_pivot / A(labels.classes) + logs;
      loss = (A(1) - smoothing) * loss + smoothing * others;
    }
    if (z_loss != A(0)) loss += z_loss * lse * lse;
    write(row, loss, total.peak, logs);
  }
  __device__ __forceinline__ void write(int64_t row, A loss, A top, A logs) const {
    losses[row] = loss;
    peak[row] = top;
    log_sum[row] = logs;
  }
};

constexpr int kPlainInFlight = 8;  // vectors of a plain row that a thread loads at once

// Plain: rows are made of aligned vectors, each thread loads all of its part at once, and there is
// no smoothing. Other rows are loaded kInFlight vectors at a time.
template <class T, bool Plain>
__global__ void __launch_bounds__(kRowThreads, sizeof(T) < 8 ? 2 : 1)
    cross_entropy_rows(const RowPlan plan, const CrossEntropyForward<T> p) {
  using A = compute_t<T>;
  constexpr int N = kVec<T>, kInFlight = Plain ? kPlainInFlight : 4;
  constexpr int kPerPeak = Plain ? 4 : 2;  // vectors that share a peak: more take registers
  if (blockIdx.x == 0 && threadIdx.x == 0) *p.arrived = 0;
  arrive_rows(plan);
  const Place place(plan);
  const int64_t row = place.row;
  const T* const start = p.logits.at(row);
  const Columns<N> columns(start, place.exists ? plan.cols : 0, !Plain);
  const bool smooth = !Plain && p.smoothing != A(0);
  const bool has_end = !Plain && place.index < columns.ends;
  using Index = std::conditional_t<Plain, int, int64_t>;  // plain rows fit registers
  const Index vectors = Index(columns.vectors);
  Index at = place.index;

  A infinite[N];
#pragma unroll
  for (A& one : infinite) one = A(-INFINITY);
  const Packed<T, N> lowest = narrow<T>(infinite);
  Packed<T, N> v[kInFlight];
  const auto load = [&] {
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      v[k] = lowest;  // beyond the row: adds nothing
      const Index i = at + k * place.size;
      if (i < vectors) v[k] = load_packed<N>(start + columns.vector(i));
    }
  };

  // Nothing is done with what is loaded, the label included, before all loads are under way.
  T at_label, end_value;
  if (has_end) end_value = start[columns.end(place.index)];
  load();
  const int64_t label = place.exists ? p.labels.of(row) : p.labels.ignore_index;
  const bool ignored = p.labels.ignored(label), has_loss = !ignored && p.labels.exists(label);

  // This thread's part of the row.
  ExpSum<T> total;
  Sum<A> above_pivot;
  A pivot = 0;
  if (has_loss) {
    if (place.index == 0) at_label = start[label];
    // Differences from a number of the row are small, so that their sum loses few digits.
    if (smooth) pivot = widen(start[0]);
    if (pivot - pivot != A(0)) pivot = A(0);  // infinite, or NaN
    const auto add_above_pivot = [&]<int M>(const Packed<T, M>& v) {
      A wide[M], own = 0;
      widen(v, wide);
#pragma unroll
      for (int e = 0; e < M; ++e) own += wide[e] - pivot;
      above_pivot.value += own;
    };
    for (; at < vectors; at += kInFlight * place.size, load()) {
#pragma unroll
      for (int first = 0; first < kInFlight; first += kPerPeak) {
        Packed<T, N> some[kPerPeak];
#pragma unroll
        for (int k = 0; k < kPerPeak; ++k) some[k] = v[first + k];
        total.add(some);
        if (!smooth) continue;
#pragma unroll
        for (int k = 0; k < kPerPeak; ++k) {
          if (at + (first + k) * place.size < vectors) add_above_pivot(some[k]);
        }
      }
    }
    if (has_end) {
      const Packed<T, 1> single[1] = {Vec<T, 1>{end_value}};
      total.add(single);
      if (smooth) add_above_pivot(single[0]);
    }
  }

  // The whole row.
  await_rows(plan);
  release_next();
  total = row_total(plan, total);
  if (smooth) above_pivot = row_total(plan, above_pivot, 1);
  if (!place.exists || place.index != 0) return;
  if (has_loss) {
    p.finish(row, total, widen(at_label), pivot, above_pivot.value);
  } else {
    const A value = ignored ? A(0) : A(NAN);
    p.write(row, value, value, value);
  }
}

constexpr int kMostOfShort = 32;  // vectors that a thread may take of a short row

// Three ways, by the number and the length of rows:
//
//   many plain rows   a group's threads load a row at once, if its vectors nearly fill the loads
//   few rows          a row is spread over the blocks of a cluster, until they fill the device
//   many other rows   small blocks, or less than a warp per row: some load while others add up
template <class T>
void launch_losses(int64_t rows, int64_t cols, bool ragged, const CrossEntropyForward<T>& p,
                   cudaStream_t stream) {
  const int64_t device = 1024 * multiprocessors();  // threads that fill it
  if (!ragged && p.smoothing == 0) {
    const RowPlan plan = plan_rows(rows, cols, kVec<T>, false, false, kPlainInFlight);
    // At least 7 of 8 loads must find a vector: the others only cost time.
    const int64_t loads = int64_t(kPlainInFlight) * plan.group;
    if (plan.held && plan.group >= 16 && rows * plan.group >= device &&
        cols / kVec<T> * 8 >= loads * 7) {
      return launch(cross_entropy_rows<T, true>, {dim3(plan.blocks()), dim3(plan.block), stream},
                    plan, p);
    }
  }
  RowPlan plan = plan_rows(rows, cols, kVec<T>, ragged, false);
  const int64_t trips = cols / kVec<T> / (4 * kRowThreads);  // of a row's only block
  while (plan.group == kRowThreads && plan.cluster < kMaxCluster && trips >= 2 * plan.cluster &&
         rows * plan.cluster < 2 * multiprocessors()) {
    plan.cluster *= 2;
  }
  for (int threads = 256; threads >= 64 && rows * threads >= device; threads /= 2) {
    if (plan.group > threads) plan.group = plan.block = threads;
  }
  // Short rows take less than a warp: what is done once per row, with most lanes idle, costs as
  // much as several vectors.
  for (int threads = kWarp; threads >= 2 * kVec<T> && rows * threads >= 2 * device &&
                            cols <= int64_t(kMostOfShort) * kVec<T> * threads;
       threads /= 2) {
    if (plan.group > threads) plan.group = threads, plan.block = kRowBlock;
  }
  const auto kernel = cross_entropy_rows<T, false>;
  if (plan.cluster > 1 && !can_cluster(kernel)) plan.cluster = 1;
  launch(kernel, {dim3(plan.blocks()), dim3(plan.block), stream, 0, false, plan.cluster}, plan, p);
}

}  // namespace opforge
