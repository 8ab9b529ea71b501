// SPDX-License-Identifier: Apache-2.0
// Forward reads x and residual and writes y: 1.5 copies (bias stays in the caches). Backward reads
// grad and writes grad_x: one copy; the bias gradient is summed on the way. Each computes the mask,
// see families/dropout/device.cuh, and four operations for each element.
#pragma once

#include <opforge/algorithms/columns.cuh>
#include <opforge/algorithms/elementwise.cuh>
#include <opforge/families/dropout/device.cuh>

namespace opforge {

// Visits the matrix by columns: writes grad_x and hands it to the bias sum.
template <class T>
struct BiasDropoutResidualBackward {
  using Element = T;
  using A = compute_t<T>;
  static constexpr int kBlocks = 2, kRowsAtOnce = 2;
  Matrix<const T> grad;
  Matrix<T> grad_x;  // contiguous and aligned: an offset in it is the number of an element
  Dropout<A> drop;

  struct Cursor {
    const T* grad;
    int64_t number;
  };

  __device__ __forceinline__ Cursor start(int64_t, int64_t row, int64_t col) const {
    return {grad.at(row, col), row * grad_x.row_stride + col};
  }
  __device__ __forceinline__ Cursor skip(const Cursor& c, int64_t rows) const {
    return {c.grad + rows * grad.row_stride, c.number + rows * grad_x.row_stride};
  }

  template <int N>
  struct Loaded {
    Vec<T, N> grad;
  };

  template <int N, bool Whole>
  __device__ __forceinline__ Loaded<N> load(const Cursor& c, const Span& span) const {
    if constexpr (Whole) return {opforge::load<N>(c.grad)};
    Loaded<N> result;
#pragma unroll
    for (int e = 0; e < N; ++e) {
      if (e >= span.lo && e < span.hi) result.grad.value[e] = c.grad[e];
    }
    return result;
  }

  template <int N, bool Whole>
  __device__ __forceinline__ void use(const Cursor& c, const Span& span, const Loaded<N>& in,
                                      A (&sum)[N]) const {
    bool kept[N];
    // Vectors are aligned and so are the numbers, which the compiler cannot know. The seed is read
    // every time: kept, the keys made of it would take 20 registers.
    keep<N>(uint64_t(*drop.seed), c.number & -int64_t(N), drop.threshold, kept);
    T* const to = grad_x.data + c.number;
    Vec<T, N> out;
#pragma unroll
    for (int e = 0; e < N; ++e) {
      if (Whole || (e >= span.lo && e < span.hi)) {
        const A passed = kept[e] ? widen(in.grad.value[e]) * drop.scale : A(0);
        out.value[e] = narrow<T>(passed);
        sum[e] += passed;
        if constexpr (!Whole) to[e] = out.value[e];
      }
    }
    if constexpr (Whole) store<N>(to, Packed<T, N>(out));
  }
};

}  // namespace opforge
