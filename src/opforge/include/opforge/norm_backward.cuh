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
  A offset, eps;
  A *weight_sums, *bias_sums;  // a row per block or cluster; null: not wanted

  static constexpr int64_t kRoom = 200 << 10;  // of a multiprocessor's shared memory
  int64_t resident() const { return plan.block <= 256 ? 2 : 1; }  // blocks on a multiprocessor
  int64_t parts() const {
    const int64_t most = multiprocessors() * resident() / plan.cluster;
    return std::min(ceil_div(plan.rows, ring.height), most);
  }
  size_t shared_bytes() const {
    const int64_t stack = int64_t(ring.height) * ring.width * int64_t(sizeof(A));
    return size_t(std::max(ring.stages * ring.stage_bytes(), stack));
  }
};

template <class T, int N, bool Centered, bool Extras>
__global__ void __launch_bounds__(kRowThreads, 1) norm_backward(const NormBackward<T> p) {
  using A = compute_t<T>;
  constexpr int K = kOwned<T> / N;
  const RowPlan& plan = p.plan;
  Ring<T, kNormSources> ring(p.ring);
  const int rank = plan.cluster == 1 ? 0 : cluster_rank();
  const int64_t first_col = int64_t(rank) * p.ring.width;
  const int width = int(min(int64_t(p.ring.width), plan.cols - first_col));
  const int64_t clusters = gridDim.x / unsigned(plan.cluster);
  const int64_t tiles = ceil_div(plan.rows, p.ring.height);
  const int within = threadIdx.x / unsigned(plan.group), index = threadIdx.x % unsigned(plan.group);
  int64_t tile = blockIdx.x / unsigned(plan.cluster);
  if (plan.cluster == 1) {
    __syncthreads();
  } else {
    cluster_sync();
  }
  const auto fill = [&](int64_t turn) {
    const int64_t which = tile + turn * clusters;
    if (threadIdx.x < kWarp && which < tiles) {
      ring.fill(int(turn % p.ring.stages), which * p.ring.height, first_col, width);
    }
  };
  for (int turn = 0; turn < p.ring.stages - 1; ++turn) fill(turn);

  // Columns index * N, then every group * N further; those past the end do not exist.
  const auto local = [&](int k) { return (index + k * plan.group) * N; };
  A scale[K][N], weight_sum[K][N], bias_sum[K][N];
#pragma unroll
  for (int k = 0; k < K; ++k) {
#pragma unroll
    for (int e = 0; e < N; ++e) {
      scale[k][e] = A(1);
      weight_sum[k][e] = bias_sum[k][e] = A(0);
    }
    if (p.weight && local(k) < width) {
      read<T>(p.weight, first_col + local(k), scale[k]);
#pragma unroll
      for (int e = 0; e < N; ++e) scale[k][e] += p.offset;
    }
  }

  const auto mean_of = [&](int64_t row) { return p.mean == nullptr ? A(0) : p.mean[row]; };
  const auto rstd_of = [&](int64_t row) { return p.rstd == nullptr ? A(0) : p.rstd[row]; };
  const A share = A(1) / A(plan.cols);
  int64_t row = tile * p.ring.height + within;
  A next_mean = row < plan.rows ? mean_of(row) : A(0);
  A next_rstd = row < plan.rows ? rstd_of(row) : A(0);
  int totals = 0;
  for (int64_t turn = 0; tile + turn * clusters < tiles; ++turn) {
    const int64_t first_row = (tile + turn * clusters) * p.ring.height;
    const int stage = int(turn % p.ring.stages);
    row = first_row + within;
    const bool exists = row < plan.rows;
    A mean = next_mean, rstd = next_rstd;
    const int64_t later = row + clusters * p.ring.height;
    if (later < plan.rows) {  // ahead of time, for its latency
      next_mean = mean_of(later);
      next_rstd = rstd_of(later);
    }
    ring.await(stage, turn / p.ring.stages);
    const auto source = [&](int i) {
      return ring.row(stage, i, first_row, exists ? within : 0, first_col);
    };
    const T *grads = source(0), *values = source(1);
    uint32_t before[K], after[K];
    if constexpr (Extras) {
#pragma unroll
      for (int k = 0; k < K; ++k) {
        const int64_t at = row * plan.cols + first_col + local(k);
        before[k] = p.before.template kept<N>(at);
        after[k] = p.after.template kept<N>(at);
      }
    }

    // h and the gradient of the norm's result, for vector k.
    const auto fetch = [&](int k, A(&h)[N], A(&grad)[N]) {
      const auto g = load<N>(grads + local(k)), v = load<N>(values + local(k));
#pragma unroll
      for (int e = 0; e < N; ++e) {
        grad[e] = widen(g.value[e]);
        h[e] = widen(v.value[e]);
      }
      if constexpr (Extras) {
        if (!p.summed) {
          p.before.forward(before[k], h);
#pragma unroll
          for (int e = 0; e < N; ++e) h[e] = widen(narrow<T>(h[e]));  // as the forward had it
        }
      }
    };
    if (p.rstd == nullptr) {
      Moments<A, Centered> moments;
#pragma unroll
      for (int k = 0; k < K; ++k) {
        A h[N], grad[N];
        if (exists && local(k) < width) {
          fetch(k, h, grad);
          moments.add(h);
        }
      }
      moments = row_total(plan, moments, totals++);
      mean = moments.mean;
      rstd = moments.rstd(plan.cols, p.eps);
    }
    const auto through_after = [&](int k, const A(&normed)[N], A(&grad)[N]) {
      if constexpr (Extras) {
        if (!p.after.relu && !p.after.dropout) return;
        A result[N], shift[N] = {};
        if (p.bias) read<T>(p.bias, first_col + local(k), shift);
#pragma unroll
        for (int e = 0; e < N; ++e) result[e] = normed[e] * scale[k][e] + shift[e];
        p.after.backward(after[k], result, grad);
      }
    };

    Pair<A> total;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      A h[N], grad[N];
      if (exists && local(k) < width) {
        fetch(k, h, grad);
#pragma unroll
        for (int e = 0; e < N; ++e) h[e] = (h[e] - mean) * rstd;
        through_after(k, h, grad);
#pragma unroll
        for (int e = 0; e < N; ++e) {
          weight_sum[k][e] = fma(grad[e], h[e], weight_sum[k][e]);
          if constexpr (Centered) bias_sum[k][e] += grad[e];
          grad[e] *= scale[k][e];
          total.a = fma(grad[e], h[e], total.a);
          if constexpr (Centered) total.b += grad[e];
        }
      }
    }
    total = row_total(plan, total, totals++);
    if (plan.group <= kWarp && plan.cluster == 1) __syncthreads();
    // All threads have left the stage of the turn before, so it can be filled again.
    fill(turn + p.ring.stages - 1);
    const A inner = total.a * share, average = total.b * share;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      A h[N], grad[N];
      if (exists && local(k) < width) {
        fetch(k, h, grad);
#pragma unroll
        for (int e = 0; e < N; ++e) h[e] = (h[e] - mean) * rstd;
        through_after(k, h, grad);
#pragma unroll
        for (int e = 0; e < N; ++e) {
          grad[e] = fma(-h[e], inner, fma(grad[e], scale[k][e], -average)) * rstd;
        }
        const int64_t at = row * plan.cols + first_col + local(k);
        Vec<T, N> out;
        if constexpr (Extras) {
          if (p.has_grad_h) {
            const auto other = load<N>(source(2) + local(k));
#pragma unroll
            for (int e = 0; e < N; ++e) grad[e] += widen(other.value[e]);
          }
          if (p.grad_residual != nullptr) {
#pragma unroll
            for (int e = 0; e < N; ++e) out.value[e] = narrow<T>(grad[e]);
            store<N>(p.grad_residual + at, out);
          }
          if (p.before.relu || p.before.dropout) {
            const auto x = load<N>((p.has_x ? source(p.ring.sources - 1) : values) + local(k));
#pragma unroll
            for (int e = 0; e < N; ++e) h[e] = widen(x.value[e]);
            p.before.backward(before[k], h, grad);
          }
        }
#pragma unroll
        for (int e = 0; e < N; ++e) out.value[e] = narrow<T>(grad[e]);
        store<N>(p.grad_x + at, out);
      }
    }
  }
  release_next();

  // The sums of a block's rows, then a row of sums per block (or cluster).
  A* const stack = reinterpret_cast<A*>(ring.memory());
  const int64_t part = int64_t(blockIdx.x / unsigned(plan.cluster)) * plan.cols + first_col;
  const auto give = [&](const A(&sum)[K][N], A* sums) {
    if (sums == nullptr) return;
    __syncthreads();
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (local(k) >= width) continue;
#pragma unroll
      for (int e = 0; e < N; ++e) stack[within * p.ring.width + local(k) + e] = sum[k][e];
    }
    __syncthreads();
    for (int col = threadIdx.x; col < width; col += blockDim.x) {
      A all = stack[col];
      for (int i = 1; i < p.ring.height; ++i) all += stack[i * p.ring.width + col];
      sums[part + col] = all;
    }
  };
  give(weight_sum, p.weight_sums);
  if constexpr (Centered) give(bias_sum, p.bias_sums);
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
bool plan_backward(int64_t rows, int64_t cols, bool clusters, bool contiguous, NormBackward<T>& p) {
  constexpr int64_t kRoom = NormBackward<T>::kRoom;
  const int64_t threads = ceil_div(cols, kOwned<T>);
  RowPlan& plan = p.plan;
  plan = {rows, cols, 1, 1, 256, true};
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
