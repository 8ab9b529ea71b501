// SPDX-License-Identifier: Apache-2.0
// The gradient of cross_entropy's logits; kernel.cuh shows how it works.
#pragma once

#include <opforge/core/index.h>
#include <opforge/core/launch.h>
#include <opforge/core/vec.h>

#include <cmath>
#include <opforge/algorithms/rows.cuh>
#include <opforge/families/activations/device.cuh>
#include <stdexcept>

#include "labels.cuh"

namespace opforge {

template <class T>
struct CrossEntropyBackward {
  using A = compute_t<T>;
  Rows<const T> logits;
  Rows<T> grad;  // where it is written; may be the rows of the logits
  Labels labels;
  int64_t rows, cols;
  Rows<const A> grad_loss;  // all alike, if it was reduced
  const int64_t* count;     // divides the gradient, if there is one
  const A *peak, *log_sum;
  A class_share, label_share;  // smoothing / classes, to every class; 1 - smoothing, to the label
  A z_loss;
};

// grad · (softmax · (1 + 2 z lse) - smoothed one hot). All elements are treated alike at first, and
// the label's is corrected afterwards: a choice for each element would double the time.
template <class T>
struct RowGradient {
  using A = compute_t<T>;
  A factor;
  A less, less_at_label;  // subtracted from every element; from the label's in addition
  A peak, log_sum;

  __device__ __forceinline__ RowGradient(const CrossEntropyBackward<T>& p, int64_t row) {
    // All loads stand before the first use of one. The compiler would not do that by itself: it
    // moves no load across the branch for the count.
    const A grad_loss = *p.grad_loss.at(row);
    const int64_t count = p.count != nullptr ? *p.count : 1;
    peak = p.peak[row];
    log_sum = p.log_sum[row];
    const A grad = kShort<T> ? grad_loss * A(roughly_inverse(float(count))) : grad_loss / A(count);
    factor = grad * fma(A(2) * p.z_loss, peak + log_sum, A(1));
    less = grad * p.class_share;
    less_at_label = grad * p.label_share;
  }
  __device__ __forceinline__ A probability(A x) const {
    if constexpr (kShort<T>) {
      return roughly_exp2(fmaf(x - peak, 1.44269504f, -1.44269504f * log_sum));
    }
    return std::exp((x - peak) - log_sum);
  }
  // The gradient of N columns; the label is `hot` columns after the first.
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

// Rows that are made of aligned vectors: one to a thread. Blocks have kGradThreads; the bounds only
// keep it at 32 registers, so that all 2048 threads of a multiprocessor fit, see elementwise.cuh.
template <class T>
__global__ void __launch_bounds__(1024, sizeof(T) < 8 ? 2 : 1)
    cross_entropy_gradient_of_vectors(const CrossEntropyBackward<T> p,
                                      const Divider<uint32_t> vectors, uint32_t count) {
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

// Which threads take which part of other rows.
struct GradPlan {
  int group_shift;           // log2 of the threads that share a row, or a piece of it
  Divider<uint32_t> pieces;  // of a row; a block takes one. 1: rows are not cut
};

constexpr int kGradVectors = 2;  // that a thread loads before it uses the first

template <class T>
__global__ void __launch_bounds__(kGradThreads)
    cross_entropy_gradient_of_rows(const CrossEntropyBackward<T> p, const GradPlan plan) {
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
  // Vectors are aligned in the gradient. Where the logits are aligned differently, their elements
  // are read one by one.
  const Columns<N> columns(out, p.cols);
  const bool aligned = misalignment(in) == misalignment(out);
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
    if (aligned) {
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
void launch_gradient(const CrossEntropyBackward<T>& p, bool whole, cudaStream_t stream) {
  constexpr int N = kVec<T>;
  const int64_t vectors = ceil_div(p.cols, N), all = p.rows * vectors;
  // Threads of the last block index past the last vector, so stay below what a Divider takes.
  if (whole && all < (int64_t(1) << 31) - kGradThreads) {
    const dim3 blocks(unsigned(ceil_div(all, kGradThreads)));
    return launch(cross_entropy_gradient_of_vectors<T>, {blocks, dim3(kGradThreads), stream}, p,
                  Divider<uint32_t>(vectors), uint32_t(all));
  }
  const int64_t threads = ceil_div(vectors, kGradVectors);
  // The two ends of a row have up to 2 (N - 1) elements, one to a thread.
  int shift = 0;
  while ((1 << shift) < kGradThreads && ((1 << shift) < threads || (1 << shift) < 2 * N)) ++shift;
  const int64_t pieces = ceil_div(threads, int64_t(1) << shift);
  const int64_t blocks = pieces > 1 ? p.rows * pieces : ceil_div(p.rows, kGradThreads >> shift);
  if (blocks >= int64_t(1) << 31) throw std::runtime_error("cross_entropy: too many rows");
  launch(cross_entropy_gradient_of_rows<T>, {dim3(unsigned(blocks)), dim3(kGradThreads), stream}, p,
         GradPlan{shift, Divider<uint32_t>(pieces)});
}

}  // namespace opforge
