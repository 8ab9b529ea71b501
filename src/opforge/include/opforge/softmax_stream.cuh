// SPDX-License-Identifier: Apache-2.0
// softmax and log_softmax of many long rows without a mask, see softmax.cuh and row_stream.cuh.
// Forward. Includes no torch header.
//
// A thread takes the exponentials of a row once, around the largest of its own elements, and holds
// them, while the peaks of all threads come together; what is left is a factor per thread:
//
//   turn i    exponentials of tile i, result of tile i - 1
//
// So a stage of the ring is free again as soon as it has been read.
#pragma once

#include <opforge/row_stream.cuh>
#include <opforge/softmax.cuh>
#include <opforge/spread_totals.cuh>

namespace opforge {

template <class T>
struct SoftmaxStream : RowStream<T> {
  float scale;     // positive, so that the largest x has the largest exponential
  float exponent;  // of 2, for 1 of x
};

// e^((x - base) * scale)
__device__ __forceinline__ float power(float x, float base, float exponent) {
  return roughly_exp2((x - base) * exponent);
}

// The peaks (see softmax.cuh) of R rows on their way between the blocks of a cluster.
template <int R>
class SpreadPeaks {
 public:
  __device__ __forceinline__ SpreadPeaks(int threads, int cluster, float exponent)
      : parts_(threads, cluster), exponent_(exponent) {}

  // The order of calls is that of SpreadParts.
  __device__ __forceinline__ void put(const float (&top)[R], const float (&sum)[R], unsigned turn) {
    float own[R], part = 0;
    const unsigned lane = threadIdx.x % kWarp;
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const float highest = warp_max(top[r]);
      own[r] = sum[r] * power(top[r], finite_base(highest), exponent_);
      if (lane % R == r) part = highest;
    }
    const float total = spread_sum(own);
    parts_.put(lane % (2 * R) < R ? part : total, turn);
  }

  __device__ __forceinline__ void get(float (&top)[R], float (&sum)[R], unsigned turn) {
    using Values = Vec<float, 2 * R>;
    parts_.await(turn);
    fill(top, -INFINITY);
    parts_.each(turn, [&](const Values& part) {
#pragma unroll
      for (int r = 0; r < R; ++r) top[r] = max(top[r], part.value[r]);
    });
    float base[R];
#pragma unroll
    for (int r = 0; r < R; ++r) {
      top[r] = warp_max(top[r]);
      base[r] = finite_base(top[r]);
    }
    fill(sum, 0.0f);
    parts_.each(turn, [&](const Values& part) {
#pragma unroll
      for (int r = 0; r < R; ++r) {
        sum[r] = fma(part.value[R + r], power(part.value[r], base[r], exponent_), sum[r]);
      }
    });
    warp_sums(sum);
  }

 private:
  SpreadParts<float, 2 * R, kStreamThreads / kWarp, kMaxCluster> parts_;
  const float exponent_;
};

// What a thread has of a row: its elements, or their exponentials around the largest of them.
template <int K, int N>
struct StreamHeld {
  float vector[K][N], end, top;
};

template <class T, bool Log, bool Ragged>
__global__ void __launch_bounds__(kStreamThreads + kWarp, 1)
    softmax_stream(const SoftmaxStream<T> p) {
  constexpr int N = kVec<T>, K = kStreamColumns / N, R = kStreamRows<T>;
  const RowPlan& plan = p.plan;
  Ring<T, 1> ring(p.ring, plan.block / kWarp);
  SpreadPeaks<R> peaks(plan.group, plan.cluster, p.exponent);
  cluster_sync();
  StreamTiles<T, Ragged> tiles(p);
  const int index = int(threadIdx.x);
  RingPlace place;
  unsigned turn = 0;
  while (tiles.next()) {
    const int turns = tiles.turns;
    if (turns == 0) continue;
    if (index >= plan.block) {
      for (int i = 0; i < turns; ++i) {
        ring.fill(place, tiles.row(0, i), tiles.first_col, tiles.width);
      }
      continue;
    }
    const Columns<N> columns(tiles.start(), tiles.width);
    bool exists[K];
    int col[K];
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int i = index + k * plan.group;
      exists[k] = i < int(columns.vectors);
      col[k] = int(columns.vector(exists[k] ? i : 0));
    }
    const bool has_end = Ragged && index < columns.ends;
    const int end = int(columns.end(index));

    StreamHeld<K, N> held[R];
    float top[R], sum[R], row_top[R], row_sum[R];
    // Row r of tile i: its elements, and this thread's peak of it.
    const auto begin = [&](int r, int i) {
      StreamHeld<K, N>& here = held[r];
      const T* const row = reinterpret_cast<const T*>(
          ring.memory() + tiles.begin(place.stage * p.ring.tile_bytes, r, i));
      here.end = has_end ? widen(row[end]) : -INFINITY;
      here.top = Ragged ? here.end : -INFINITY;
#pragma unroll
      for (int k = 0; k < K; ++k) {
        widen(load_packed<N>(row + col[k]), here.vector[k]);
        float own = -INFINITY;  // by itself, so that vectors are gone through side by side
#pragma unroll
        for (int e = 0; e < N; ++e) own = max(own, here.vector[k][e]);
        here.top = max(here.top, own);
      }
      const float base = finite_base(here.top);
      const auto raise = [&](float& v) {
        const float raised = power(v, base, p.exponent);
        if (!Log) v = raised;
        return raised;
      };
      top[r] = here.top;
      sum[r] = Ragged ? raise(here.end) : 0.0f;
#pragma unroll
      for (int k = 0; k < K; ++k) {
        float own = 0;
#pragma unroll
        for (int e = 0; e < N; ++e) own += raise(here.vector[k][e]);
        sum[r] += exists[k] ? own : 0.0f;
      }
    };
    const auto put = [&](int i) {
      ring.release(place);
      place.next(p.ring.stages);
      peaks.put(top, sum, turn + i);
    };
    T* out = p.y + tiles.row(0, 0) * plan.cols + tiles.first_col;
    // Of what is held of it, given the peak of the whole row.
    const auto finish = [&](int r, int i, const StreamHeld<K, N>& last) {
      // A row of -inf is NaN, as in PyTorch: 0 / 0, or infinite differences.
      const float base = finite_base(row_top[r]);
      const float shift = Log ? log(row_sum[r]) : 0.0f;
      const float factor =
          Log ? 1.0f : power(last.top, base, p.exponent) * roughly_inverse(row_sum[r]);
      const auto result = [&](float v) {
        return Log ? fma(v - base, p.scale, -shift) : v * factor;
      };
      const bool wanted = tiles.exists(r, i);
      T* const to = out + r * p.across;
#pragma unroll
      for (int k = 0; k < K; ++k) {
        float y[N];
#pragma unroll
        for (int e = 0; e < N; ++e) y[e] = result(last.vector[k][e]);
        store_if<N>(wanted && exists[k], to + col[k], narrow<T>(y));
      }
      if (wanted && has_end) to[end] = narrow<T>(result(last.end));
      if (r == R - 1) out += p.step;
    };

    ring.await(place);
#pragma unroll
    for (int r = 0; r < R; ++r) begin(r, 0);
    put(0);
    for (int i = 1; i < turns; ++i) {
      ring.await(place);
      // Registers take two tiles of one row at most: while the totals of the last tile are under
      // way the first row of this one is begun, the others take the place of those before them.
#pragma unroll
      for (int r = 0; r < R; ++r) {
        const StreamHeld<K, N> last = held[r];
        if (r > 0) finish(r, i - 1, last);
        begin(r, i);
        if (r == 0) peaks.get(row_top, row_sum, turn + i - 1);
        if (r == R - 1) put(i);
        if (r == 0) finish(r, i - 1, last);
      }
    }
    peaks.get(row_top, row_sum, turn + turns - 1);
#pragma unroll
    for (int r = 0; r < R; ++r) finish(r, turns - 1, held[r]);
    turn += turns;
  }
}

}  // namespace opforge
