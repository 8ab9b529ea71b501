// SPDX-License-Identifier: Apache-2.0
// Forward reads x and writes y: the floor is a copy (bias stays in the caches). Backward reads grad
// and y and writes grad_x: 1.5 copies; the bias gradient is summed on the way.
#pragma once

#include <opforge/columns.cuh>
#include <opforge/elementwise.cuh>

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
  Matrix<const T> grad, y;
  Matrix<T> grad_x;
  double scale;

  template <int N>
  struct Loaded {
    Vec<T, N> grad, y;
  };

  template <int N, bool Whole>
  __device__ __forceinline__ Loaded<N> load(const Span& at) const {
    const T* g = grad.data + at.row * grad.row_stride + at.col * grad.col_stride;
    const T* v = y.data + at.row * y.row_stride + at.col * y.col_stride;
    if constexpr (Whole && N > 1) return {opforge::load<N>(g), opforge::load<N>(v)};
    Loaded<N> result;
#pragma unroll
    for (int e = 0; e < N; ++e) {
      if (e >= at.lo && e < at.hi) {
        result.grad.value[e] = g[e];
        result.y.value[e] = v[e];
      }
    }
    return result;
  }

  template <int N, bool Whole>
  __device__ __forceinline__ void use(const Span& at, const Loaded<N>& in,
                                      compute_t<T> (&sum)[N]) const {
    using A = compute_t<T>;
    Vec<T, N> out;
#pragma unroll
    for (int e = 0; e < N; ++e) {
      if (Whole || (e >= at.lo && e < at.hi)) {
        const A passed = widen(in.y.value[e]) <= A(0) ? A(0) : A(widen(in.grad.value[e]));
        out.value[e] = narrow<T>(passed * A(scale));
        sum[e] += passed;
      }
    }
    T* address = grad_x.data + at.row * grad_x.row_stride + at.col;
    if constexpr (Whole) {
      store<N>(address, out);
    } else {
#pragma unroll
      for (int e = 0; e < N; ++e) {
        if (e >= at.lo && e < at.hi) address[e] = out.value[e];
      }
    }
  }
};

}  // namespace opforge
