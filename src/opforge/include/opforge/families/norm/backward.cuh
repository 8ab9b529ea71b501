// SPDX-License-Identifier: Apache-2.0
// The gradients of layer_norm and rms_norm, see families/norm/forward.cuh. Includes no torch
// header.
//
// A block to a multiprocessor (or a cluster of them, for long rows) stays for the whole kernel and
// takes tiles of rows from a ring, which a warp of its own fills. A thread has the same columns in
// every row, so it keeps their weights and adds up their weight gradients in registers; a second
// small kernel adds up those of the blocks, in a fixed order. A row is read twice from shared
// memory: for its total, and, while the next one's total is under way, for its result.
//
// Vectors begin at 16-byte boundaries of memory, so if rows do not all begin at one, a thread's
// columns depend on the row. Rows that begin alike are taken together: that is a class.
#pragma once

#include <opforge/algorithms/ring.cuh>
#include <opforge/algorithms/row_totals.cuh>
#include <opforge/families/norm/forward.cuh>

namespace opforge {

// Columns per thread. Doubles take more room in the ring.
template <class T>
constexpr int kOwned = sizeof(T) == 8 ? 8 : 16;
constexpr int kBackwardThreads = 512;  // of a block, and a warp that fills the ring

// What stands around the norm that a kernel is compiled for: nothing, a relu before it, a residual
// before it, a dropout after it with or without a relu before it, or any of all. The less, the
// fewer registers.
enum class With { nothing, relu, residual, dropout, all };

// Rows that a thread takes in a turn: the more, the less there is to do around them for each. Where
// a tile of two would not fit the ring several times, it is one.
template <class T, bool Centered, With with>
constexpr int kAbreast = sizeof(T) == 2 && !Centered && with == With::nothing ? 2 : 1;

// What is added up of a row: the gradients times the normalised values, and the gradients.
template <class A, bool Centered>
struct Dots {
  A a = 0, b = 0;
  __device__ __forceinline__ void operator+=(const Dots& other) {
    a += other.a;
    b += other.b;
  }
};

template <class A>
struct Dots<A, false> {
  A a = 0;
  static constexpr A b = 0;
  __device__ __forceinline__ void operator+=(const Dots& other) { a += other.a; }
};

// Of the rows of a turn.
template <class One, int R>
struct Several {
  One row[R];
  __device__ __forceinline__ void operator+=(const Several& other) {
#pragma unroll
    for (int r = 0; r < R; ++r) row[r] += other.row[r];
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
  const A *mean, *rstd;
  Param weight, bias;
  Around<A> before, after;
  bool summed;  // h is before(x) + residual, else x is all there is
  bool has_grad_h, has_x;
  A offset, share;             // share: 1 / cols
  A *weight_sums, *bias_sums;  // a row per block or cluster; null: not wanted
  int classes;                 // of rows that begin alike: a power of two
  int groups;                  // of threads, which take a row of a tile each, or several
  int64_t jump, step;          // from a thread's row to that of its next turn, in rows and elements

  int64_t tiles_of_class() const {
    return ceil_div(ceil_div(plan.rows, int64_t(classes)), int64_t(ring.height));
  }
  // Blocks (clusters) that share the tiles.
  int64_t parts() const {
    return std::min<int64_t>(tiles_of_class() * classes, clusters_at_once(plan.cluster));
  }
  // In elements of A, a row of sums where the ring was.
  __host__ __device__ int stack_pitch() const { return (ring.width + 3) / 4 * 4; }
  size_t shared_bytes() const {
    const int64_t stack = 2 * int64_t(groups) * stack_pitch() * int64_t(sizeof(A));
    return size_t(std::max(int64_t(ring.stages) * ring.stage_bytes(), stack));
  }
};

// What a thread has of its columns, in every row: N of them for a vector, 1 for an end.
template <int N, class A>
struct Owned {
  bool exists;
  A scale[N], weight_sum[N], bias_sum[N];
};

// What stays of a vector after the norm, and, from bit 16 on, before it.
template <int N, With with, class T>
__device__ __forceinline__ uint32_t kept_around(const NormBackward<T>& p, int64_t flat) {
  const auto kept = [&](const auto& around) {
    return around.template kept<N, (N > 1)>(around.key(), flat);
  };
  if constexpr (with == With::dropout) return kept(p.after);
  return (p.after.dropout ? kept(p.after) : 0) | (p.before.dropout ? kept(p.before) << 16 : 0);
}

template <class T, bool Centered, With with, bool Ragged>
__global__ void __launch_bounds__(kBackwardThreads + kWarp, 1)
    norm_backward(const NormBackward<T> p) {
  using A = compute_t<T>;
  constexpr int N = kVec<T>, K = kOwned<T> / N, R = kAbreast<T, Centered, with>;
  using Total = Several<Dots<A, Centered>, R>;
  constexpr bool kAll = with == With::all, kDropout = kAll || with == With::dropout;
  const RowPlan& plan = p.plan;
  Ring<T, kNormSources> ring(p.ring, plan.block / kWarp);
  RowTotals<Total, kBackwardThreads / kWarp, kMaxCluster> totals(plan.group, plan.cluster,
                                                                 plan.block);
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
  const int rank = plan.cluster == 1 ? 0 : cluster_rank();
  const int64_t first_col = int64_t(rank) * p.ring.width;
  const int width = int(min(int64_t(p.ring.width), plan.cols - first_col));
  const int within = threadIdx.x / unsigned(plan.group), index = threadIdx.x % unsigned(plan.group);
  const bool fills = int(threadIdx.x) >= plan.block;
  const int part = blockIdx.x / unsigned(plan.cluster), parts = gridDim.x / unsigned(plan.cluster);

  // Tiles are numbered class by class. Without classes the blocks take them in turn, which keeps
  // what is read at a time together; else a block takes a run of them, so as to have few classes.
  const int64_t of_class =
      ceil_div(ceil_div(plan.rows, int64_t(p.classes)), int64_t(p.ring.height));
  const int64_t tiles = of_class * p.classes;
  int64_t tile = Ragged ? tiles * part / parts : part;
  const int64_t stop = Ragged ? tiles * (part + 1) / parts : tiles;
  const int64_t stride = Ragged ? 1 : parts;
  RingPlace ahead, behind;
  unsigned turn = 0;
  for (bool first = true; tile < stop; first = false) {
    const int64_t kind = Ragged ? tile / of_class : 0;
    const int64_t until = Ragged ? min(stop, (kind + 1) * of_class) : stop;
    const int turns = int(ceil_div(until - tile, stride));
    const int64_t first_row = (tile - kind * of_class) * p.ring.height * p.classes + kind;
    tile = until;
    // Of the first of this thread's rows in these tiles; others of a turn are `apart`.
    const int64_t row = first_row + within * int64_t(p.classes);
    const int64_t apart = int64_t(p.groups) * p.classes;
    const Columns<N> columns(p.ring.source[0].at(row) + first_col, width);
    const int from = ring.offset(first_row, within, first_col);
    Owned<N, A> vector[K];
    Owned<1, A> end;
    const auto own = [&]<int M>(Owned<M, A>& owned, int64_t col, bool exists) {
      owned.exists = exists;
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
    const int first_vector = int(columns.vector(index)), first_end = int(columns.end(index));
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int i = index + k * plan.group;
      own(vector[k], columns.vector(i), !fills && i < columns.vectors);
    }
    if (Ragged) own(end, first_end, !fills && index < columns.ends);
    // Calls body(owned, which, col), which is K for the end.
    const auto each = [&](auto&& body) {
#pragma unroll
      for (int k = 0; k < K; ++k) body(vector[k], k, first_vector + k * plan.group * N);
      if constexpr (Ragged) body(end, K, first_end);
    };

    if (fills) {
      for (int i = 0; i < turns; ++i) ring.fill(ahead, first_row + i * p.jump, first_col, width);
    } else {
      // How many turns have this row of theirs.
      int rows[R];
#pragma unroll
      for (int r = 0; r < R; ++r) {
        const int64_t one = row + r * apart;
        const bool exists = within + r * p.groups < p.ring.height && one < plan.rows;
        rows[r] = exists ? int(min(int64_t(turns), ceil_div(plan.rows - one, p.jump))) : 0;
      }
      // A row's normalised values and the gradients of the norm's result; 0 where there is nothing.
      const auto fetch = [&]<int M>(const Owned<M, A>& owned, const unsigned char* at, bool exists,
                                    int col, uint32_t kept, A mean, A rstd, A(&normed)[M],
                                    A(&grad)[M]) {
        exists = exists && owned.exists;
        const unsigned char* const h_at = exists ? at + p.ring.tile_bytes : zeros;
        if (!exists) at = zeros;  // no branch: loads go out one after the other
        widen(load_packed<M>(reinterpret_cast<const T*>(at)), grad);
        Packed<T, M> h = load_packed<M>(reinterpret_cast<const T*>(h_at));
        const bool relu = kDropout && p.before.relu && !(kAll && p.summed);
        if (with == With::relu || relu) h = relu_of(h);
        widen(h, normed);
        if (kAll && !p.summed && p.before.dropout) {
          p.before.drop(kept >> 16, normed);
          widen(narrow<T>(normed), normed);  // as the forward had it
        }
        normalise<Centered>(normed, Scale<A>{mean, rstd});
        if (with == With::dropout || (kAll && p.after.dropout)) p.after.drop(kept, grad);
        if (kAll && p.after.relu) {
          A shift[M] = {};
          if (p.bias && owned.exists) read<T>(p.bias, first_col + col, shift);
#pragma unroll
          for (int e = 0; e < M; ++e) {
            const A result = normed[e] * owned.scale[e] + shift[e];
            grad[e] = result <= A(0) ? A(0) : grad[e];
          }
        }
      };
      const int64_t below = apart * plan.cols;  // from one row of a turn to the next
      const int below_bytes = p.groups * ring.pitch();
      int64_t flat = row * plan.cols + first_col;  // of the row that is behind
      const A *mean_at = p.mean + row, *rstd_at = p.rstd + row;
      Scale<A> next[R] = {}, now[R] = {};
      const auto fetch_statistics = [&](int i) {
#pragma unroll
        for (int r = 0; r < R; ++r) {
          if (i >= rows[r]) continue;
          if (Centered) next[r].mean = mean_at[r * apart];
          next[r].rstd = rstd_at[r * apart];
        }
        mean_at += p.jump;
        rstd_at += p.jump;
      };
      fetch_statistics(0);
      Total put;
      uint32_t kept[K + 1] = {}, old_kept[K + 1];  // made once for both times a row is read
      for (int i = 0; i <= turns; ++i) {
        Scale<A> old[R];
        const Total old_put = put;
#pragma unroll
        for (int k = 0; k <= K; ++k) old_kept[k] = kept[k];
#pragma unroll
        for (int r = 0; r < R; ++r) old[r] = now[r];
        if (i < turns) {
#pragma unroll
          for (int r = 0; r < R; ++r) now[r] = next[r];
          fetch_statistics(i + 1);  // ahead of time, for its latency
          ring.await(ahead);
          const unsigned char* const at = ring.stage(ahead) + from;
          const int64_t here = flat + (i > 0 ? p.step : 0);
          Total total;
          each([&]<int M>(Owned<M, A>& owned, int k, int col) {
            if constexpr (kDropout) kept[k] = kept_around<M, with>(p, here + col);
#pragma unroll
            for (int r = 0; r < R; ++r) {
              A normed[M], grad[M];
              fetch(owned, at + r * below_bytes + col * int(sizeof(T)), i < rows[r], col, kept[k],
                    now[r].mean, now[r].rstd, normed, grad);
              auto& sum = total.row[r];
#pragma unroll
              for (int e = 0; e < M; ++e) {
                owned.weight_sum[e] = fma(grad[e], normed[e], owned.weight_sum[e]);
                if constexpr (Centered) owned.bias_sum[e] += grad[e];
                grad[e] *= owned.scale[e];
                sum.a = fma(grad[e], normed[e], sum.a);
                if constexpr (Centered) sum.b += grad[e];
              }
            }
          });
          ahead.next(p.ring.stages);
          put = totals.put(total, turn + i);
        }
        if (i == 0) continue;
        const Total total = totals.get(old_put, turn + i - 1);
        const unsigned char* const at = ring.stage(behind) + from;
        A inner[R], average[R];
#pragma unroll
        for (int r = 0; r < R; ++r) {
          average[r] = total.row[r].b * p.share;
          inner[r] = -total.row[r].a * p.share * old[r].rstd;
          if (!kAll) inner[r] *= old[r].rstd;  // and normed is left without it
        }
        each([&]<int M>(const Owned<M, A>& owned, int k, int col) {
#pragma unroll
          for (int r = 0; r < R; ++r) {
            const int64_t here = flat + r * below + col;
            const unsigned char* const there = at + r * below_bytes + col * int(sizeof(T));
            A normed[M], grad[M];
            fetch(owned, there, i <= rows[r], col, old_kept[k], old[r].mean,
                  kAll ? old[r].rstd : A(1), normed, grad);
#pragma unroll
            for (int e = 0; e < M; ++e) {
              const A own = product(grad[e], owned.scale[e]);
              if constexpr (Centered) {  // nothing is left of gradients that are all the same
                grad[e] = fma(normed[e], inner[r], (own - average[r]) * old[r].rstd);
              } else {
                grad[e] = fma(own, old[r].rstd, normed[e] * inner[r]);
              }
            }
            if (!owned.exists || i > rows[r]) continue;
            const auto source = [&](int s) {
              return load_packed<M>(reinterpret_cast<const T*>(there + s * p.ring.tile_bytes));
            };
            if constexpr (kAll || with == With::residual) {
              if (p.has_grad_h) {
                widen(source(2), normed);
#pragma unroll
                for (int e = 0; e < M; ++e) grad[e] += normed[e];
              }
            }
            if constexpr (kAll) {
              if (p.grad_residual != nullptr) store<M>(p.grad_residual + here, narrow<T>(grad));
              if (p.before.dropout) p.before.drop(old_kept[k] >> 16, grad);
            }
            Packed<T, M> result = narrow<T>(grad);
            if (with == With::relu || (kDropout && p.before.relu)) {
              result = relu_gradient(result, source(kAll && p.has_x ? p.ring.sources - 1 : 1));
            }
            store<M>(p.grad_x + here, result);
          }
        });
        ring.release(behind);
        behind.next(p.ring.stages);
        flat += p.step;
      }
    }
    turn += unsigned(turns);

    // The sums of the block's rows meet where the ring was, those of vectors first.
    __syncthreads();
    A* const stack = reinterpret_cast<A*>(ring.memory());
    const int vector_columns = int(columns.vectors) * N, height = p.groups;
    const int pitch = p.stack_pitch();
    each([&]<int M>(const Owned<M, A>& owned, int k, int) {
      if (!owned.exists) return;
      const int slot = M == 1 && k == K ? vector_columns + index : (index + k * plan.group) * N;
      constexpr int W = M < 4 ? M : 4;
#pragma unroll
      for (int e = 0; e < M; e += W) {
        Vec<A, W> weight, bias;
#pragma unroll
        for (int j = 0; j < W; ++j) {
          weight.value[j] = owned.weight_sum[e + j];
          bias.value[j] = owned.bias_sum[e + j];
        }
        store<W>(stack + within * pitch + slot + e, weight);
        if (Centered) store<W>(stack + (height + within) * pitch + slot + e, bias);
      }
    });
    __syncthreads();
    const auto add_up = [&](const A* column, A* sums) {
      if (fills || sums == nullptr) return;
      for (int col = threadIdx.x; col < width; col += plan.block) {
        const int past = col - columns.head;  // the first whole vector
        const int end = vector_columns + (col < columns.head ? col : col - vector_columns);
        const int slot = past >= 0 && past < vector_columns ? past : end;
        A all = column[slot];
        for (int r = 1; r < height; ++r) all += column[r * pitch + slot];
        A& sum = sums[part * plan.cols + first_col + col];
        sum = first ? all : sum + all;
      }
    };
    add_up(stack, p.weight_sums);
    if (Centered) add_up(stack + height * pitch, p.bias_sums);
    fence_for_copies();  // which land where the sums were, if there is another class
    __syncthreads();
  }
  release_next();
}

// Adds up rows of sums and rounds once; of weights and biases at the same time.
template <class A, class Out>
__global__ void __launch_bounds__(1024)
    finish_sums(const A* sums, int64_t between, int parts, int64_t cols, Out* out, Out* other) {
  constexpr int kAcross = 32;
  struct Stack {
    A sum[32][kAcross + 1];
  };
  Stack& stack = shared<Stack>();
  const int across = threadIdx.x % kAcross, down = threadIdx.x / kAcross;
  const int height = blockDim.x / kAcross;
  const int64_t col = int64_t(blockIdx.x) * kAcross + across;
  if (blockIdx.y == 1) {
    sums += between;
    out = other;
  }
  A sum = A(0);
  await_previous();
  if (col < cols) {
    constexpr int kFlying = 8;  // loads, the last of which may find nothing
    for (int part = down; part < parts; part += kFlying * height) {
      A some[kFlying];
#pragma unroll
      for (int i = 0; i < kFlying; ++i) {
        const int one = part + i * height;
        some[i] = one < parts ? sums[one * cols + col] : A(0);
      }
#pragma unroll
      for (const A& one : some) sum += one;
    }
  }
  stack.sum[down][across] = sum;
  __syncthreads();
  if (down == 0 && col < cols) {
    for (int i = 1; i < height; ++i) sum += stack.sum[i][across];
    out[col] = narrow<Out>(compute_t<Out>(sum));
  }
}

// How a backward's rows are dealt out, up to `abreast` to a thread in a turn. False: they are too
// long for a cluster.
template <class T>
bool plan_backward(int64_t rows, int64_t cols, int abreast, bool clusters, bool contiguous,
                   NormBackward<T>& p) {
  const int classes = classes_of<T>(cols);
  const int64_t room = ring_room();
  constexpr int64_t kElement = sizeof(T);
  const int64_t threads = ceil_div(cols, int64_t(kOwned<T>));
  RowPlan& plan = p.plan;
  RingParams<T, kNormSources>& ring = p.ring;
  // Ragged rows have ends, of which a thread takes one.
  plan = {rows, cols, classes > 1 ? 2 * kVec<T> : 1, 1, 0, true};
  ring.width = int(std::min<int64_t>(cols, 1 << 24));
  if (threads <= kWarp) {
    while (plan.group < threads) plan.group *= 2;
    p.groups = kBackwardThreads / plan.group;
  } else {
    const auto warps = [&] { return ceil_div(ceil_div(threads, plan.cluster), kWarp) * kWarp; };
    const auto fits = [&] {
      return warps() <= kBackwardThreads &&
             3 * (warps() * kOwned<T> + 2 * kVec<T>)*kElement * ring.sources <= room;
    };
    while (clusters && plan.cluster < kMaxCluster && !fits()) plan.cluster *= 2;
    if (!fits()) return false;
    plan.group = int(warps());
    p.groups = plan.cluster > 1 ? 1 : std::max(kBackwardThreads / plan.group, 1);
    if (plan.cluster > 1) {  // whole vectors to every block, so that all of them are aligned alike
      ring.width = int(ceil_div(ceil_div(cols, plan.cluster), 2 * kVec<T>)) * 2 * kVec<T>;
    }
  }
  ring.height = p.groups * abreast;
  const auto shrink = [&] {
    if (ring.height == p.groups) p.groups = (p.groups + 1) / 2;
    ring.height = p.groups;
  };
  // Few rows leave no multiprocessor without work.
  while (ring.height > 1 && ceil_div(rows, int64_t(ring.height)) < multiprocessors() &&
         (ring.height > p.groups || plan.group * p.groups > kWarp)) {
    shrink();
  }
  ring.rows = rows;
  ring.step = p.classes = classes;
  const auto round = [](int64_t bytes, int64_t to) { return int(ceil_div(bytes, to) * to); };
  const int64_t margins = 2 * kVec<T>;
  const auto lay_out = [&] {
    const bool run = ring.height == 1 || (contiguous && classes == 1 && plan.cluster == 1);
    ring.pitch = run ? 0 : round((ring.width + margins) * kElement, 16);
    const int64_t bytes = run ? (int64_t(ring.height) * ring.width + margins) * kElement
                              : int64_t(ring.pitch) * ring.height;
    ring.tile_bytes = round(bytes, 128);
  };
  const auto least = [&] { return ring.height > p.groups ? 3 : 2; };  // stages
  for (lay_out(); ring.height > 1 && least() * ring.stage_bytes() > room; lay_out()) shrink();
  plan.block = plan.group * p.groups;
  ring.stages = int(std::clamp<int64_t>(room / ring.stage_bytes(), 2, 4));
  return true;
}

}  // namespace opforge
