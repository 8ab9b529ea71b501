// SPDX-License-Identifier: Apache-2.0
// Forward reads x and writes y: the floor is a copy (bias stays in the caches). Backward reads grad
// and x and writes grad_x: 1.5 copies; the bias gradient is summed on the way. The activation is
// computed again, so that x and bias are all that is saved. The forward computes 8 operations for
// each element.
#pragma once

#include <opforge/algorithms/columns.cuh>
#include <opforge/algorithms/elementwise.cuh>
#include <opforge/families/activations/device.cuh>

namespace opforge {

template <class T>
struct BiasGelu {
  using A = compute_t<T>;
  Gelu<T> gelu;

  __device__ A operator()(A x, A bias) const { return gelu.value(x + bias); }
};

// Visits the matrix by columns: writes grad_x and hands it, before it is rounded, to the bias sum.
// Unrolled over rows and columns, both forms of gelu would not fit the instruction cache together.
template <class T, bool tanh>
struct BiasGeluBackward {
  using Element = T;
  using A = compute_t<T>;
  static constexpr int kBlocks = 1;
  Matrix<const T> grad, x;
  Matrix<T> grad_x;
  const T* bias;
  int64_t bias_stride;

  struct Cursor {
    const T *grad, *x;
    T* grad_x;
  };

  __device__ __forceinline__ Cursor start(int64_t, int64_t row, int64_t col) const {
    return {grad.at(row, col), x.at(row, col), grad_x.at(row, col)};
  }
  __device__ __forceinline__ Cursor skip(const Cursor& c, int64_t rows) const {
    return {c.grad + rows * grad.row_stride, c.x + rows * x.row_stride,
            c.grad_x + rows * grad_x.row_stride};
  }

  template <int N>
  struct Loaded {
    Vec<T, N> grad, x;
  };

  template <int N, bool Whole>
  __device__ __forceinline__ Loaded<N> load(const Cursor& c, const Span& span) const {
    if constexpr (Whole) return {opforge::load<N>(c.grad), opforge::load<N>(c.x)};
    Loaded<N> result;
#pragma unroll
    for (int e = 0; e < N; ++e) {
      if (e >= span.lo && e < span.hi) {
        result.grad.value[e] = c.grad[e];
        result.x.value[e] = c.x[e];
      }
    }
    return result;
  }

  template <int N>
  struct Bound;

  template <int N>
  __device__ __forceinline__ Bound<N> bind(const Span& span) const {
    Bound<N> result{*this};
#pragma unroll
    for (int e = 0; e < N; ++e) {
      if (e >= span.lo && e < span.hi) result.shift.value[e] = bias[(span.col + e) * bias_stride];
    }
    return result;
  }
};

// With the bias of a thread's columns.
template <class T, bool tanh>
template <int M>
struct BiasGeluBackward<T, tanh>::Bound : BiasGeluBackward<T, tanh> {
  Vec<T, M> shift;

  template <int N, bool Whole>
  __device__ __forceinline__ void use(const Cursor& c, const Span& span, const Loaded<N>& in,
                                      A (&sum)[N]) const {
    Vec<T, N> out;
#pragma unroll
    for (int e = 0; e < N; ++e) {
      if (Whole || (e >= span.lo && e < span.hi)) {
        A value;
        const A passed = Gelu<T>{tanh}.gradient(widen(in.x.value[e]) + widen(shift.value[e]),
                                                widen(in.grad.value[e]), value);
        out.value[e] = narrow<T>(passed);
        sum[e] += passed;
        if constexpr (!Whole) c.grad_x[e] = out.value[e];
      }
    }
    if constexpr (Whole) store<N>(c.grad_x, out);
  }
};

}  // namespace opforge
