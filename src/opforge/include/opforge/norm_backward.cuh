// SPDX-License-Identifier: Apache-2.0
// The gradients of layer_norm and rms_norm, see norm.cuh. Includes no torch header.
//
// Blocks (or clusters of them, for long rows) stay for the whole kernel and take rows in turn from
// a ring. A thread has the same columns in every row, so it keeps their weights and adds up their
// weight gradients in registers; a second small kernel adds up those of the blocks, in a fixed
// order.
#pragma once

#include <opforge/norm.cuh>
#include <opforge/ring.cuh>

namespace opforge {

// Columns per thread. Doubles take more room in the ring.
template <class T>
constexpr int kOwned = sizeof(T) == 8 ? 8 : 16;

// Rounded, whatever it is added to: where it is all there is to a sum, the difference is 0.
__device__ __forceinline__ float product(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ double product(double a, double b) { return __dmul_rn(a, b); }

template <class A>
struct Pair {
  A a = 0, b = 0;
  __device__ __forceinline__ void operator+=(const Pair& other) {
    a += other.a;
    b += other.b;
  }
};

// In the ring: grad_y, then h (or x, if h is only a function of it), then grad_h if it is there,
// then x if before.relu wants it beside h.
constexpr int kNormSources = 4;

template <class T>
struct NormBackward {
  using A = compute_t<T>;
  RowPlan plan;
  RingParams<T, kNormSources> ring;
  T *grad_x, *grad_residual;  // grad_residual if it is not grad_x
  const A *mean, *rstd;       // null: to be computed
  Param weight, bias;         // bias if after.relu wants it
  Around before, after;
  bool summed;  // h is before(x) + residual, else x is all there is
  bool has_grad_h, has_x;
  A offset, eps, share;        // share: 1 / cols
  A *weight_sums, *bias_sums;  // a row per block or cluster; null: not wanted

  static constexpr int64_t kRoom = 200 << 10;  // of a multiprocessor's shared memory
  bool centered;                               // two sums per column take more registers
  int64_t resident() const {
    return plan.block <= (centered ? 256 : 320) ? 2 : 1;
  }  // to a multiprocessor
  // Blocks (clusters) that take rows in turn: so many that each has rows of one alignment only.
  int64_t parts() const {
    const int64_t tiles = ceil_div(plan.rows, ring.height);
    // Large clusters cannot use every multiprocessor; one that has to wait would double the time.
    const int64_t usable = multiprocessors() * (plan.cluster >= 4 ? 10 : 11) / 11;
    const int64_t most = std::max<int64_t>(usable * resident() / plan.cluster, 1);
    if (tiles <= most || plan.cols % kVec<T> == 0) return std::min(tiles, most);
    return std::max<int64_t>(most / kVec<T>, 1) * kVec<T>;
  }
  size_t shared_bytes() const {
    const int64_t stack = int64_t(ring.height) * ring.width * int64_t(sizeof(A));
    return size_t(std::max(ring.stages * ring.stage_bytes(), stack));
  }
};

// What a thread has of its columns, in every row: N of them for a vector, 1 for an end.
template <int N, class A>
struct Owned {
  int col;  // in the block's part of a row; negative: none
  A scale[N], weight_sum[N], bias_sum[N];
};

template <class T, bool Centered, Extras extras>
__global__ void __launch_bounds__(Centered ? kRowThreads : 640)
    norm_backward(const NormBackward<T> p) {
  using A = compute_t<T>;
  constexpr int N = kVec<T>, K = kOwned<T> / N;
  constexpr bool kExtras = extras != Extras::none, kDropout = extras == Extras::all;
  const RowPlan& plan = p.plan;
  const int rank = plan.cluster == 1 ? 0 : cluster_rank();
  const int64_t first_col = int64_t(rank) * p.ring.width;
  const int width = int(min(int64_t(p.ring.width), plan.cols - first_col));
  const int64_t clusters = gridDim.x / unsigned(plan.cluster);
  const int64_t tiles = ceil_div(plan.rows, p.ring.height);
  const int within = threadIdx.x / unsigned(plan.group), index = threadIdx.x % unsigned(plan.group);
  const int64_t tile = blockIdx.x / unsigned(plan.cluster);
  Ring<T, kNormSources> ring(p.ring);
  arrive_rows(plan);
  await_rows(plan);
  __syncthreads();
  const auto fill = [&](int64_t turn) {
    const int64_t which = tile + turn * clusters;
    if (threadIdx.x < kWarp && which < tiles) {
      ring.fill(int(turn % p.ring.stages), which * p.ring.height, first_col, width);
    }
  };
  for (int turn = 0; turn < p.ring.stages - 1; ++turn) fill(turn);

  // All rows of a thread are aligned alike, so its vectors have the same columns in each.
  const int64_t my_row = min(tile * p.ring.height + within, plan.rows - 1);
  const Columns<N> columns(p.ring.source[0].at(my_row) + first_col, width);
  const int offset = ring.offset(tile * p.ring.height, within, first_col);
  Owned<N, A> vector[K];
  Owned<1, A> end;
  const auto own = [&](auto& owned, int64_t col, bool exists) {
    constexpr int M = sizeof(owned.scale) / sizeof(A);
    owned.col = exists ? int(col) : -1;
#pragma unroll
    for (int e = 0; e < M; ++e) {
      owned.scale[e] = A(1);
      owned.weight_sum[e] = owned.bias_sum[e] = A(0);
    }
    if (exists && p.weight) {
      read<T>(p.weight, first_col + col, owned.scale);
      if (p.offset != A(0)) {
#pragma unroll
        for (int e = 0; e < M; ++e) owned.scale[e] += p.offset;
      }
    }
  };
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const int i = index + k * plan.group;
    own(vector[k], columns.vector(i), i < columns.vectors);
  }
  own(end, columns.end(index), index < columns.ends);
  const auto each = [&](bool exists, auto&& body) {
    if (!exists) return;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (vector[k].col >= 0) body(vector[k], Width<N>{});
    }
    if (end.col >= 0) body(end, Width<1>{});
  };

  const auto mean_of = [&](int64_t row) { return p.mean == nullptr ? A(0) : p.mean[row]; };
  const auto rstd_of = [&](int64_t row) { return p.rstd == nullptr ? A(0) : p.rstd[row]; };
  A next_mean = mean_of(my_row), next_rstd = rstd_of(my_row);
  int totals = 0;
  for (int64_t turn = 0; tile + turn * clusters < tiles; ++turn) {
    const int64_t first_row = (tile + turn * clusters) * p.ring.height;
    const int stage = int(turn % p.ring.stages);
    const int64_t row = first_row + within;
    const bool exists = row < plan.rows;
    A mean = next_mean, rstd = next_rstd;
    const int64_t later = row + clusters * p.ring.height;
    if (later < plan.rows) {  // ahead of time, for its latency
      next_mean = mean_of(later);
      next_rstd = rstd_of(later);
    }
    ring.await(stage, turn / p.ring.stages);
    const auto source = [&](int i) { return ring.row(stage, i, offset); };
    const T *grads = source(0), *values = source(1);
    const int64_t flat = row * plan.cols + first_col;

    // h, or its normalised value, and the gradient of the norm's result.
    const auto fetch = [&](int col, auto& h) {
      constexpr int M = sizeof(h) / sizeof(A);
      widen(load_packed<M>(values + col), h);
      if (kExtras && !p.summed) {
        p.before.template forward<kDropout>(flat + col, h);
        widen(narrow<T>(h), h);  // as the forward had it
      }
    };
    const auto fetch_both = [&](const auto& owned, auto& h, auto& grad) {
      constexpr int M = sizeof(h) / sizeof(A);
      widen(load_packed<M>(grads + owned.col), grad);
      fetch(owned.col, h);
#pragma unroll
      for (int e = 0; e < M; ++e) h[e] = (Centered ? h[e] - mean : h[e]) * rstd;
      if (kExtras && (p.after.relu || (kDropout && p.after.dropout))) {
        A result[M], shift[M] = {};
        if (p.bias) read<T>(p.bias, first_col + owned.col, shift);
#pragma unroll
        for (int e = 0; e < M; ++e) result[e] = h[e] * owned.scale[e] + shift[e];
        p.after.template backward<kDropout>(flat + owned.col, result, grad);
      }
    };
    if (p.rstd == nullptr) {
      Moments<T, Centered> moments;
      const A pivot = Centered ? widen(values[0]) : A(0);
      each(exists, [&]<int M>(auto& owned, Width<M>) {
        A h[M];
        fetch(owned.col, h);
        moments.add(h, pivot);
      });
      const Scale<A> scale = row_total(plan, moments, totals++).scale(pivot, p.share, p.eps);
      mean = scale.mean;
      rstd = scale.rstd;
    }
    Pair<A> total;
    each(exists, [&]<int M>(auto& owned, Width<M>) {
      A h[M], grad[M];
      fetch_both(owned, h, grad);
#pragma unroll
      for (int e = 0; e < M; ++e) {
        owned.weight_sum[e] = fma(grad[e], h[e], owned.weight_sum[e]);
        if (Centered) owned.bias_sum[e] += grad[e];
        grad[e] *= owned.scale[e];
        total.a = fma(grad[e], h[e], total.a);
        if (Centered) total.b += grad[e];
      }
    });
    total = row_total(plan, total, totals++);
    if (plan.group <= kWarp) __syncthreads();
    // All threads have left the stage of the turn before, so it can be filled again.
    fill(turn + p.ring.stages - 1);
    const A inner = total.a * p.share, average = total.b * p.share;
    each(exists, [&]<int M>(auto& owned, Width<M>) {
      A h[M], grad[M];
      fetch_both(owned, h, grad);
#pragma unroll
      for (int e = 0; e < M; ++e) {
        grad[e] = fma(-h[e], inner, product(grad[e], owned.scale[e]) - average) * rstd;
      }
      if constexpr (kExtras) {
        if (p.has_grad_h) {
          widen(load_packed<M>(source(2) + owned.col), h);
#pragma unroll
          for (int e = 0; e < M; ++e) grad[e] += h[e];
        }
        if (p.grad_residual != nullptr) {
          store<M>(p.grad_residual + flat + owned.col, narrow<T>(grad));
        }
        if (p.before.relu || (kDropout && p.before.dropout)) {
          widen(load_packed<M>((p.has_x ? source(p.ring.sources - 1) : values) + owned.col), h);
          p.before.template backward<kDropout>(flat + owned.col, h, grad);
        }
      }
      store<M>(p.grad_x + flat + owned.col, narrow<T>(grad));
    });
  }
  release_next();

  // The sums of a block's rows, then a row of sums per block (or cluster).
  A* const stack = reinterpret_cast<A*>(ring.memory());
  const int64_t part = tile * plan.cols + first_col;
  const auto give = [&](auto member, A* sums) {
    if (sums == nullptr) return;
    __syncthreads();
    each(true, [&]<int M>(auto& owned, Width<M>) {
#pragma unroll
      for (int e = 0; e < M; ++e) stack[within * p.ring.width + owned.col + e] = member(owned)[e];
    });
    __syncthreads();
    for (int col = threadIdx.x; col < width; col += blockDim.x) {
      A all = stack[col];
      for (int i = 1; i < p.ring.height; ++i) all += stack[i * p.ring.width + col];
      sums[part + col] = all;
    }
  };
  give([](auto& owned) -> auto& { return owned.weight_sum; }, p.weight_sums);
  if (Centered) give([](auto& owned) -> auto& { return owned.bias_sum; }, p.bias_sums);
}

// Adds up rows of sums and rounds once.
template <class A, class Out>
__global__ void __launch_bounds__(1024)
    finish_sums(const A* sums, int parts, int64_t cols, Out* out) {
  constexpr int kAcross = 32;
  struct Stack {
    A sum[32][kAcross + 1];
  };
  Stack& stack = shared<Stack>();
  const int across = threadIdx.x % kAcross, down = threadIdx.x / kAcross;
  const int height = blockDim.x / kAcross;
  const int64_t col = int64_t(blockIdx.x) * kAcross + across;
  A sum = A(0);
  await_previous();
  if (col < cols) {
#pragma unroll 4
    for (int part = down; part < parts; part += height) sum += sums[part * cols + col];
  }
  stack.sum[down][across] = sum;
  __syncthreads();
  if (down == 0 && col < cols) {
    for (int i = 1; i < height; ++i) sum += stack.sum[i][across];
    out[col] = narrow<Out>(compute_t<Out>(sum));
  }
}

// How a backward's rows are dealt out. False: they are too long for a cluster.
template <class T>
bool plan_backward(int64_t rows, int64_t cols, bool clusters, bool ragged, bool contiguous,
                   NormBackward<T>& p) {
  constexpr int64_t kRoom = NormBackward<T>::kRoom;
  const int64_t threads = ceil_div(cols, kOwned<T>);
  RowPlan& plan = p.plan;
  plan = {rows, cols, ragged ? 2 * kVec<T> : 1, 1, 256, true};  // an end to a thread
  RingParams<T, kNormSources>& ring = p.ring;
  ring.rows = rows;
  if (threads <= 128) {
    while (plan.group < threads) plan.group *= 2;
    ring.width = int(cols);
  } else {
    const auto warps = [&] { return ceil_div(ceil_div(threads, plan.cluster), kWarp) * kWarp; };
    const auto fits = [&] {
      return warps() <= kRowThreads &&
             2 * (warps() * kOwned<T> + kVec<T>)*int64_t(sizeof(T)) * ring.sources <= kRoom;
    };
    while (clusters && plan.cluster < kMaxCluster && !fits()) plan.cluster *= 2;
    if (!fits()) return false;
    plan.group = plan.block = int(warps());
    // Whole vectors to every block, so that all of them are aligned alike.
    ring.width = int(ceil_div(ceil_div(cols, plan.cluster), 2 * kVec<T>)) * 2 * kVec<T>;
  }
  ring.height = plan.block / plan.group;
  const auto round = [](int64_t bytes) { return ceil_div(bytes, 16) * 16; };
  ring.pitch = ring.height == 1 || contiguous
                   ? 0
                   : int(round((ring.width + 2 * kVec<T>)*int64_t(sizeof(T))));
  const int64_t run = (int64_t(ring.height) * ring.width + 2 * kVec<T>)*int64_t(sizeof(T));
  ring.tile_bytes = ring.pitch == 0 ? ceil_div(run, 128) * 128
                                    : ceil_div(int64_t(ring.pitch) * ring.height, 128) * 128;
  const int64_t room = kRoom / p.resident();
  ring.stages = int(std::clamp<int64_t>(room / ring.stage_bytes(), 2, kMaxStages));
  return true;
}

}  // namespace opforge
