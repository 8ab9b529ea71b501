// SPDX-License-Identifier: Apache-2.0
// Forward reads the logits once and writes next to nothing: its floor is a read. Backward reads
// them once and writes as much: a copy. Of a row that is ignored both read what is loaded before
// its label is known, and use nothing of it.
//
// A row's threads, a few lanes to a cluster of blocks, take vectors in turn, four or eight of them
// on their way at a time, and keep the largest logit so far and the sum of exp(logit - it). Rows
// need not be aligned: vectors begin at 16-byte boundaries, and the two ends of a row go by
// element.
#pragma once

#include <opforge/core/index.h>
#include <opforge/core/launch.h>
#include <opforge/core/reduce.h>
#include <opforge/core/vec.h>

#include <cmath>
#include <opforge/algorithms/rows.cuh>
#include <opforge/families/activations/device.cuh>

namespace opforge {

// The labels, and what they make of a row.
struct Labels {
  Rows<const int64_t> rows;
  int64_t ignore_index, classes;

  __device__ __forceinline__ int64_t of(int64_t row) const { return *rows.at(row); }
  __device__ __forceinline__ bool ignored(int64_t label) const { return label == ignore_index; }
  __device__ __forceinline__ bool exists(int64_t label) const {
    return uint64_t(label) < uint64_t(classes);
  }
};

// The largest of some vectors, NaN aside; of 16-bit elements two at a time.
template <class T, int K, int N>
__device__ __forceinline__ compute_t<T> largest(const Packed<T, N> (&v)[K]) {
  compute_t<T> top = -INFINITY;
#if defined(__CUDA_ARCH__)
  if constexpr (kShort<T> && N % 2 == 0) {
    Pair<T> tops;
#pragma unroll
    for (int i = 0; i < K * N / 2; ++i) {
      Pair<T> two;
      memcpy(&two, &v[i / (N / 2)].word[i % (N / 2)], sizeof two);
      tops = i == 0 ? two : __hmax2(tops, two);
    }
    return fmaxf(widen(tops.x), widen(tops.y));
  }
#endif
#pragma unroll
  for (int k = 0; k < K; ++k) {
    compute_t<T> wide[N];
    widen(v[k], wide);
#pragma unroll
    for (int e = 0; e < N; ++e) top = fmax(top, wide[e]);
  }
  return top;
}

// What is known of a part of a row: its largest element, NaN aside, and the sum of e^(v - it). At
// 16 bits that is the sum of 2^(v rate - shift), where rate is log2(e) and the shift is the largest
// element times it, rounded: an instruction less per element. log() puts the rounding right.
template <class T>
struct ExpSum {
  using A = compute_t<T>;
  A peak = -INFINITY, sum = 0;

  // Where nothing but -inf was seen, e^(v - base) is 0.
  static __device__ __forceinline__ A base(A top) { return top == A(-INFINITY) ? A(0) : top; }
  // Of elements so large that the rounding of the shift would be more than 2^x can hold, no two are
  // close enough for the rate to matter: any power of two does, and rounds nothing.
  static __device__ __forceinline__ A rate(A top) {
    return fabs(top) > A(1e8) ? A(1.0 / 1024) : A(1.44269504f);
  }
  // By what a sum changes when its peak does.
  static __device__ __forceinline__ A change(A from, A to) {
    if (from == A(-INFINITY)) return A(0);
    if constexpr (!kShort<T>) return std::exp(from - to);
    return roughly_exp2(product(from, rate(to)) - product(to, rate(to)));
  }
  __device__ __forceinline__ void raise(A top) {
    sum *= change(peak, top);
    peak = top;
  }

  // All at once: what was summed before is scaled once.
  template <int K, int N>
  __device__ __forceinline__ void add(const Packed<T, N> (&v)[K]) {
    raise(fmax(peak, largest(v)));
    const A from = base(peak), by = rate(from), shift = product(from, by);
    A own[K] = {};
#pragma unroll
    for (int k = 0; k < K; ++k) {
      A x[N];
      widen(v[k], x);
#pragma unroll
      for (int e = 0; e < N; ++e) {
        own[k] += kShort<T> ? roughly_exp2(fma(x[e], by, -shift)) : std::exp(x[e] - from);
      }
    }
#pragma unroll
    for (int k = 0; k < K; ++k) sum += own[k];
  }
  // One of the two factors is 1, so that a += b and b += a round alike.
  __device__ __forceinline__ void operator+=(const ExpSum& other) {
    const bool higher = other.peak > peak;
    const A low = higher ? peak : other.peak, high = higher ? other.peak : peak;
    const A factor = change(low, high);
    sum = higher ? fma(sum, factor, other.sum) : fma(other.sum, factor, sum);
    peak = high;
  }
  // The logarithm of the sum of e^(v - peak).
  __device__ __forceinline__ A log() const {
    const A logs = std::log(sum), from = base(peak), by = rate(from);
    return kShort<T> ? fma(fma(from, by, -product(from, by)), A(-0.69314718f), logs) : logs;
  }
};

// First the peak of all lanes, so that each sum is scaled once.
template <class T>
__device__ __forceinline__ ExpSum<T> warp_total(ExpSum<T> total, int width) {
  compute_t<T> top = total.peak;
  for (int step = width / 2; step > 0; step /= 2) {
    top = fmax(top, __shfl_xor_sync(0xffffffffu, top, step));
  }
  total.raise(top);
  total.sum = warp_sum(total.sum, width);
  return total;
}
template <class T>
__device__ __forceinline__ ExpSum<T> warp_total(ExpSum<T> total) {
  return warp_total(total, kWarp);
}

template <class T>
struct CrossEntropyForward {
  using A = compute_t<T>;
  Rows<const T> logits;
  Labels labels;
  A smoothing, z_loss;
  A *losses, *peak, *log_sum;
  unsigned* arrived;  // blocks of the launch that follows; it starts at 0

  // `away`: from the pivot, all elements together; for smoothing.
  __device__ __forceinline__ void finish(int64_t row, const ExpSum<T>& total, A at_label, A pivot,
                                         A away) const {
    const A logs = total.log(), lse = total.peak + logs;
    A loss = (total.peak - at_label) + logs;
    if (smoothing != A(0)) {
      const A others = (total.peak - pivot) - away / A(labels.classes) + logs;
      loss = (A(1) - smoothing) * loss + smoothing * others;
    }
    if (z_loss != A(0)) loss += z_loss * lse * lse;
    set(row, loss, total.peak, logs);
  }
  __device__ __forceinline__ void set(int64_t row, A loss, A top, A logs) const {
    losses[row] = loss;
    peak[row] = top;
    log_sum[row] = logs;
  }
};

constexpr int kPlainShare = 8;  // vectors of a plain row that a thread loads at once

// Plain: rows are made of aligned vectors, and there is no smoothing.
template <class T, bool Plain>
__global__ void __launch_bounds__(kRowThreads, sizeof(T) < 8 ? 2 : 1)
    cross_entropy_rows(const RowPlan plan, const CrossEntropyForward<T> p) {
  using A = compute_t<T>;
  constexpr int N = kVec<T>, kFlying = Plain ? kPlainShare : 4;
  constexpr int kTogether = Plain ? 4 : 2;  // share a peak: more take registers
  if (blockIdx.x == 0 && threadIdx.x == 0) *p.arrived = 0;
  arrive_rows(plan);
  const Place place(plan);
  const int64_t row = place.row;
  const T* const start = p.logits.at(row);
  const Columns<N> columns(start, place.exists ? plan.cols : 0, !Plain);
  const bool smooth = !Plain && p.smoothing != A(0);
  const bool has_end = !Plain && place.index < columns.ends;
  using Index = std::conditional_t<Plain, int, int64_t>;  // many rows are short
  const Index vectors = Index(columns.vectors);
  Index at = place.index;
  A infinite[N];
#pragma unroll
  for (A& one : infinite) one = A(-INFINITY);
  const Packed<T, N> lowest = narrow<T>(infinite);
  Packed<T, N> v[kFlying];
  const auto load = [&] {
#pragma unroll
    for (int k = 0; k < kFlying; ++k) {
      v[k] = lowest;
      const Index i = at + k * place.size;
      if (i < vectors) v[k] = load_packed<N>(start + columns.vector(i));
    }
  };
  // Nothing is done with what is loaded, the label included, before all loads are under way.
  T at_label, end;
  if (has_end) end = start[columns.end(place.index)];
  load();
  const int64_t label = place.exists ? p.labels.of(row) : p.labels.ignore_index;
  const bool ignored = p.labels.ignored(label), read = !ignored && p.labels.exists(label);
  ExpSum<T> total;
  Sum<A> away;
  A pivot = 0;
  if (read) {
    if (place.index == 0) at_label = start[label];
    if (smooth) pivot = widen(start[0]);
    if (pivot - pivot != A(0)) pivot = A(0);
    const auto add_away = [&]<int M>(const Packed<T, M>& v) {
      A wide[M], own = 0;
      widen(v, wide);
#pragma unroll
      for (int e = 0; e < M; ++e) own += wide[e] - pivot;
      away.value += own;
    };
    for (; at < vectors; at += kFlying * place.size, load()) {
#pragma unroll
      for (int first = 0; first < kFlying; first += kTogether) {
        Packed<T, N> some[kTogether];
#pragma unroll
        for (int k = 0; k < kTogether; ++k) some[k] = v[first + k];
        total.add(some);
        if (!smooth) continue;
#pragma unroll
        for (int k = 0; k < kTogether; ++k) {
          if (at + (first + k) * place.size < vectors) add_away(some[k]);
        }
      }
    }
    if (has_end) {
      const Packed<T, 1> single[1] = {Vec<T, 1>{end}};
      total.add(single);
      if (smooth) add_away(single[0]);
    }
  }
  await_rows(plan);
  release_next();
  total = row_total(plan, total);
  if (smooth) away = row_total(plan, away, 1);
  if (!place.exists || place.index != 0) return;
  if (read) {
    p.finish(row, total, widen(at_label), pivot, away.value);
  } else {
    const A value = ignored ? A(0) : A(NAN);
    p.set(row, value, value, value);
  }
}

constexpr int kShortShare = 32;  // vectors of a short row that a thread may take

// Many plain rows have as many threads as it takes to load a row at once, if that comes out even.
// Rows too few to fill the device are spread over the blocks of a cluster; other rows, if many,
// take small blocks, so that some load while others add up.
template <class T>
void run_cross_entropy(int64_t rows, int64_t cols, bool ragged, const CrossEntropyForward<T>& p,
                       cudaStream_t stream) {
  const int64_t device = 1024 * multiprocessors();  // threads
  if (!ragged && p.smoothing == 0) {
    const RowPlan plan = plan_rows(rows, cols, kVec<T>, false, false, kPlainShare);
    const int64_t loads = int64_t(kPlainShare) * plan.group;  // with many to no avail it is slower
    if (plan.held && plan.group >= 16 && rows * plan.group >= device &&
        cols / kVec<T> * 8 >= loads * 7) {
      return launch(cross_entropy_rows<T, true>, {dim3(plan.blocks()), dim3(plan.block), stream},
                    plan, p);
    }
  }
  RowPlan plan = plan_rows(rows, cols, kVec<T>, ragged, false);
  const int64_t trips = cols / kVec<T> / (4 * kRowThreads);  // of a block alone
  while (plan.group == kRowThreads && plan.cluster < kMaxCluster && trips >= 2 * plan.cluster &&
         rows * plan.cluster < 2 * multiprocessors()) {
    plan.cluster *= 2;
  }
  for (int threads = 256; threads >= 64 && rows * threads >= device; threads /= 2) {
    if (plan.group > threads) plan.group = plan.block = threads;
  }
  // Short rows less than a warp: the end of one costs as much as several vectors.
  for (int threads = kWarp; threads >= 2 * kVec<T> && rows * threads >= 2 * device &&
                            cols <= int64_t(kShortShare) * kVec<T> * threads;
       threads /= 2) {
    if (plan.group > threads) plan.group = threads, plan.block = kRowBlock;
  }
  const auto kernel = cross_entropy_rows<T, false>;
  if (plan.cluster > 1 && !can_cluster(kernel)) plan.cluster = 1;
  launch(kernel, {dim3(plan.blocks()), dim3(plan.block), stream, 0, false, plan.cluster}, plan, p);
}

// The losses of all rows added up, in an order that follows from their number.
template <class A>
struct LossTotal {
  const A* losses;
  Labels labels;
  int64_t rows;
  A *parts, *loss;
  int64_t *part_counts, *count;  // count: of the rows not ignored, if a mean is wanted
  unsigned* arrived;
};

template <class A>
__global__ void __launch_bounds__(1024) total_losses(const LossTotal<A> p) {
  const int64_t piece = ceil_div(p.rows, gridDim.x), first = blockIdx.x * piece;
  const int64_t last = min(first + piece, p.rows);
  A sum = 0;
  int64_t count = 0;
  if (p.count != nullptr) {  // the labels are there before the losses
#pragma unroll 8
    for (int64_t i = first + threadIdx.x; i < last; i += blockDim.x) {
      count += p.labels.ignored(p.labels.of(i)) ? 0 : 1;
    }
  }
  await_previous();
#pragma unroll 8
  for (int64_t i = first + threadIdx.x; i < last; i += blockDim.x) sum += p.losses[i];
  sum = group_sum(sum, blockDim.x);
  count = group_sum(count, blockDim.x);
  if (gridDim.x > 1) {
    struct Shared {
      bool last;
    };
    bool& is_last = shared<Shared>().last;
    if (threadIdx.x == 0) {
      p.parts[blockIdx.x] = sum;
      p.part_counts[blockIdx.x] = count;
      __threadfence();
      is_last = atomicAdd(p.arrived, 1u) == gridDim.x - 1;
      __threadfence();
    }
    __syncthreads();
    if (!is_last) return;
    const bool mine = threadIdx.x < gridDim.x;
    sum = group_sum(mine ? p.parts[threadIdx.x] : A(0), blockDim.x);
    count = group_sum(mine ? p.part_counts[threadIdx.x] : int64_t(0), blockDim.x);
  }
  if (threadIdx.x != 0) return;
  *p.loss = p.count != nullptr ? sum / A(count) : sum;
  if (p.count != nullptr) *p.count = count;
}

// What several blocks have found is worth a meeting only of very many rows.
inline int total_blocks(int64_t rows) {
  return rows <= 16384 ? 1 : int(std::min<int64_t>(rows / 4096, 128));
}
inline int total_threads(int64_t rows) { return rows > 4096 && rows <= 16384 ? 1024 : 512; }

template <class T>
struct CrossEntropyBackward {
  using A = compute_t<T>;
  Rows<const T> logits;
  Rows<T> grad;  // where its rows are; may be those of the logits
  Labels labels;
  int64_t rows, cols;
  Rows<const A> grad_loss;  // all alike, if it was reduced
  const int64_t* count;     // divides the gradient, if there is one
  const A *peak, *log_sum;
  A spread, kept, z_loss;  // of a label, what each class gets, and what it keeps
};

// grad · (softmax · (1 + 2 z lse) - smoothed one hot) of one element after the other, the hot one
// apart: a choice per element would take as long as the rest of it.
template <class T>
struct RowGradient {
  using A = compute_t<T>;
  A factor, less, less_at_label, peak, log_sum;

  __device__ __forceinline__ RowGradient(const CrossEntropyBackward<T>& p, int64_t row) {
    // In this order no load comes after a branch with something that waits for another.
    const A passed = *p.grad_loss.at(row);
    const int64_t count = p.count != nullptr ? *p.count : 1;
    peak = p.peak[row];
    log_sum = p.log_sum[row];
    const A grad = kShort<T> ? passed * A(roughly_inverse(float(count))) : passed / A(count);
    factor = grad * fma(A(2) * p.z_loss, peak + log_sum, A(1));
    less = grad * p.spread;
    less_at_label = grad * p.kept;
  }
  __device__ __forceinline__ A probability(A x) const {
    if constexpr (kShort<T>) {
      return roughly_exp2(fmaf(x - peak, 1.44269504f, -1.44269504f * log_sum));
    }
    return std::exp((x - peak) - log_sum);
  }
  // Of N columns; the label is `hot` columns after the first.
  template <int N>
  __device__ __forceinline__ Packed<T, N> of(const Packed<T, N>& v, int64_t hot,
                                             bool ignored) const {
    A g[N];
    widen(v, g);
#pragma unroll
    for (A& x : g) x = fma(factor, probability(x), -less);
    if (uint64_t(hot) < uint64_t(N)) {
#pragma unroll
      for (int e = 0; e < N; ++e) g[e] -= e == int(hot) ? less_at_label : A(0);
    }
    Packed<T, N> result = narrow<T>(g);
    if (ignored) fill(result.word, {});
    return result;
  }
};

constexpr int kGradThreads = 256;

// Rows that are made of aligned vectors: one to a thread, and all 2048 threads of a multiprocessor
// are to fit, see elementwise.cuh.
template <class T>
__global__ void __launch_bounds__(1024, sizeof(T) < 8 ? 2 : 1)
    cross_entropy_gradient_vectors(const CrossEntropyBackward<T> p, const Divider<uint32_t> vectors,
                                   uint32_t count) {
  constexpr int N = kVec<T>;
  const uint32_t i = blockIdx.x * kGradThreads + threadIdx.x;
  if (i >= count) return;
  const uint32_t row = vectors.divide(i), col = (i - row * vectors.divisor) * N;
  // All loads, before one is waited for.
  const Packed<T, N> v = load_packed<N>(p.logits.at(row) + col);
  const int64_t label = p.labels.of(row);
  const RowGradient<T> gradient(p, row);
  store<N>(p.grad.at(row) + col, gradient.of(v, label - col, p.labels.ignored(label)));
}

// How any other rows are dealt to threads.
struct GradPlan {
  int group_shift;  // log2 of the threads to a piece of a row
  Divider<uint32_t> pieces;
};

constexpr int kGradVectors = 2;  // a thread's, on their way together

template <class T>
__global__ void __launch_bounds__(kGradThreads)
    cross_entropy_gradient(const CrossEntropyBackward<T> p, const GradPlan plan) {
  constexpr int N = kVec<T>;
  const int group = 1 << plan.group_shift, index = int(threadIdx.x) & (group - 1);
  // Either several rows to a block or several blocks to a row.
  int64_t row =
      int64_t(blockIdx.x) * (kGradThreads >> plan.group_shift) + (threadIdx.x >> plan.group_shift);
  uint32_t piece = 0;
  if (plan.pieces.divisor > 1) {
    row = plan.pieces.divide(blockIdx.x);
    piece = blockIdx.x - uint32_t(row) * plan.pieces.divisor;
  }
  if (row >= p.rows) return;
  const T* const in = p.logits.at(row);
  T* const out = p.grad.at(row);
  const Columns<N> columns(out, p.cols);
  const bool alike = misalignment(in) == misalignment(out);
  const bool has_end = piece == 0 && index < columns.ends;
  const int64_t end = columns.end(index);
  const int64_t first = (int64_t(piece) * kGradVectors << plan.group_shift) + index;
  Packed<T, N> v[kGradVectors];
  Packed<T, 1> single;
#pragma unroll
  for (int k = 0; k < kGradVectors; ++k) {
    const int64_t i = first + k * group;
    if (i >= columns.vectors) continue;
    const T* const from = in + columns.vector(i);
    if (alike) {
      v[k] = load_packed<N>(from);
    } else {
      Vec<T, N> elements;
#pragma unroll
      for (int e = 0; e < N; ++e) elements.value[e] = from[e];
      v[k] = elements;
    }
  }
  if (has_end) single = load_packed<1>(in + end);
  const int64_t label = p.labels.of(row);
  const bool ignored = p.labels.ignored(label);
  const RowGradient<T> gradient(p, row);
#pragma unroll
  for (int k = 0; k < kGradVectors; ++k) {
    const int64_t i = first + k * group;
    if (i >= columns.vectors) continue;
    const int64_t col = columns.vector(i);
    store<N>(out + col, gradient.of(v[k], label - col, ignored));
  }
  if (has_end) store<1>(out + end, gradient.of(single, label - end, ignored));
}

// Whole: all rows are made of aligned vectors.
template <class T>
void run_gradient(const CrossEntropyBackward<T>& p, bool whole, cudaStream_t stream) {
  constexpr int N = kVec<T>;
  const int64_t vectors = ceil_div(p.cols, N), all = p.rows * vectors;
  // The last block may index past the end, so stay below what a Divider takes.
  if (whole && all < (int64_t(1) << 31) - kGradThreads) {
    const dim3 blocks(unsigned(ceil_div(all, kGradThreads)));
    return launch(cross_entropy_gradient_vectors<T>, {blocks, dim3(kGradThreads), stream}, p,
                  Divider<uint32_t>(vectors), uint32_t(all));
  }
  const int64_t threads = ceil_div(vectors, kGradVectors);
  // An end of a row has up to 2 (N - 1) elements, one to a thread.
  int shift = 0;
  while ((1 << shift) < kGradThreads && ((1 << shift) < threads || (1 << shift) < 2 * N)) ++shift;
  const int64_t pieces = ceil_div(threads, int64_t(1) << shift);
  const int64_t blocks = pieces > 1 ? p.rows * pieces : ceil_div(p.rows, kGradThreads >> shift);
  if (blocks >= int64_t(1) << 31) throw std::runtime_error("cross_entropy: too many rows");
  launch(cross_entropy_gradient<T>, {dim3(unsigned(blocks)), dim3(kGradThreads), stream}, p,
         GradPlan{shift, Divider<uint32_t>(pieces)});
}

}  // namespace opforge
