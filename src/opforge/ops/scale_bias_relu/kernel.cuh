// SPDX-License-Identifier: Apache-2.0
// Forward reads x and writes y: the floor is a copy (bias stays in the caches). Backward reads grad
// and y and writes grad_x: 1.5 copies; the bias gradient is summed on the way. Each computes three
// operations for each element.
#pragma once

#include <opforge/algorithms/columns.cuh>
#include <opforge/algorithms/elementwise.cuh>

namespace opforge {

struct ScaleBiasRelu {
  double scale;

  __device__ float operator()(float x, float bias) const {
    const float v = fmaf(x, float(scale), bias);
    return v < 0.0f ? 0.0f : v;  // keeps NaN
  }
  __device__ double operator()(double x, double bias) const {
    const double v = fma(x, scale, bias);
    return v < 0.0 ? 0.0 : v;
  }
};

// Visits the matrix by columns: writes grad_x and hands the unscaled gradient to the bias sum.
template <class T>
struct ScaleBiasReluBackward {
  using Element = T;
  static constexpr int kBlocks = 1;
  Matrix<const T> grad, y;
  Matrix<T> grad_x;
  compute_t<T> scale;

  struct Cursor {
    const T *grad, *y;
    T* grad_x;
  };

  __device__ __forceinline__ Cursor start(int64_t, int64_t row, int64_t col) const {
    return {grad.at(row, col), y.at(row, col), grad_x.at(row, col)};
  }
  __device__ __forceinline__ Cursor skip(const Cursor& c, int64_t rows) const {
    return {c.grad + rows * grad.row_stride, c.y + rows * y.row_stride,
            c.grad_x + rows * grad_x.row_stride};
  }

  template <int N>
  struct Loaded {
    Vec<T, N> grad, y;
  };

  template <int N, bool Whole>
  __device__ __forceinline__ Loaded<N> load(const Cursor& c, const Span& span) const {
    if constexpr (Whole) return {opforge::load<N>(c.grad), opforge::load<N>(c.y)};
    Loaded<N> result;
#pragma unroll
    for (int e = 0; e < N; ++e) {
      if (e >= span.lo && e < span.hi) {
        result.grad.value[e] = c.grad[e];
        result.y.value[e] = c.y[e];
      }
    }
    return result;
  }

  template <int N, bool Whole>
  __device__ __forceinline__ void use(const Cursor& c, const Span& span, const Loaded<N>& in,
                                      compute_t<T> (&sum)[N]) const {
    using A = compute_t<T>;
    Vec<T, N> out;
#pragma unroll
    for (int e = 0; e < N; ++e) {
      if (Whole || (e >= span.lo && e < span.hi)) {
        const A passed = widen(in.y.value[e]) <= A(0) ? A(0) : widen(in.grad.value[e]);
        out.value[e] = narrow<T>(passed * scale);
        sum[e] += passed;
        if constexpr (!Whole) c.grad_x[e] = out.value[e];
      }
    }
    if constexpr (Whole) store<N>(c.grad_x, out);
  }
};

}  // namespace opforge
