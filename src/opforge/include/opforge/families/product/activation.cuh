// SPDX-License-Identifier: Apache-2.0
// An activation that is chosen at run time, and its gradient with the sums down the columns.
// Includes no torch header.
#pragma once

#include <opforge/families/product/finish.h>

#include <opforge/algorithms/columns.cuh>
#include <opforge/families/activations/device.cuh>

namespace opforge {

template <class T>
struct Identity {
  using A = compute_t<T>;

  __device__ __forceinline__ A value(A x) const { return x; }
  __device__ __forceinline__ A gradient(A x, A passed, A& result) const {
    result = x;
    return passed;
  }
};

template <class T>
struct Sigmoid {
  using A = compute_t<T>;

  __device__ __forceinline__ A value(A x) const {
    if constexpr (kShort<T>) return Logistic(x).value;
    return A(1) / (A(1) + std::exp(-x));
  }
  __device__ __forceinline__ A gradient(A x, A passed, A& result) const {
    result = value(x);
    if constexpr (kShort<T>) return passed * Logistic(x).slope;
    return passed * (A(1) - result) * result;
  }
};

// Calls f with the activation. All threads choose the same one.
template <class T, class F>
__device__ __forceinline__ void with_activation(Activation activation, const F& f) {
  switch (activation) {
    case Activation::none:
      return f(Identity<T>{});
    case Activation::relu:
      return f(Relu<T>{});
    case Activation::gelu:
      return f(Gelu<T>{false});
    case Activation::gelu_tanh:
      return f(Gelu<T>{true});
    case Activation::silu:
      return f(Silu<T>{});
    case Activation::sigmoid:
      return f(Sigmoid<T>{});
  }
}

// As a function for algorithms/elementwise.cuh: of z, or of z and a residual.
template <class T>
struct FinishElements {
  using A = compute_t<T>;
  Finish finish;

  __device__ __forceinline__ A operator()(A z) const {
    A y;
    with_activation<T>(finish.activation, [&](const auto& act) { y = finish.after(act.value(z)); });
    return y;
  }
  __device__ __forceinline__ A operator()(A z, A residual) const { return (*this)(z) + residual; }
};

// A visitor of algorithms/columns.cuh: writes the gradient of z, given that of the result, and sums
// it down the columns. Without `z`, it only sums.
template <class T, bool by_z>
struct FinishGradient {
  using Element = T;
  using A = compute_t<T>;
  static constexpr int kBlocks = 1;
  Matrix<const T> grad, z;
  Matrix<T> grad_z;
  Finish finish;

  struct Cursor {
    const T *grad, *z;
    T* grad_z;
  };

  __device__ __forceinline__ Cursor start(int64_t, int64_t row, int64_t col) const {
    if constexpr (!by_z) return {grad.at(row, col), nullptr, nullptr};
    return {grad.at(row, col), z.at(row, col), grad_z.at(row, col)};
  }
  __device__ __forceinline__ Cursor skip(const Cursor& c, int64_t rows) const {
    if constexpr (!by_z) return {c.grad + rows * grad.row_stride, nullptr, nullptr};
    return {c.grad + rows * grad.row_stride, c.z + rows * z.row_stride,
            c.grad_z + rows * grad_z.row_stride};
  }

  template <int N>
  struct Loaded {
    Vec<T, N> grad, z;
  };

  template <int N, bool Whole>
  __device__ __forceinline__ Loaded<N> load(const Cursor& c, const Span& span) const {
    Loaded<N> result;
    if constexpr (Whole) {
      result.grad = opforge::load<N>(c.grad);
      if constexpr (by_z) result.z = opforge::load<N>(c.z);
    } else {
#pragma unroll
      for (int e = 0; e < N; ++e) {
        if (e >= span.lo && e < span.hi) {
          result.grad.value[e] = c.grad[e];
          if constexpr (by_z) result.z.value[e] = c.z[e];
        }
      }
    }
    return result;
  }

  template <int N, bool Whole>
  __device__ __forceinline__ void use(const Cursor& c, const Span& span, const Loaded<N>& in,
                                      A (&sum)[N]) const {
    if constexpr (!by_z) {
#pragma unroll
      for (int e = 0; e < N; ++e) {
        if (Whole || (e >= span.lo && e < span.hi)) sum[e] += widen(in.grad.value[e]);
      }
    } else {
      Vec<T, N> out;
      with_activation<T>(finish.activation, [&](const auto& act) {
#pragma unroll
        for (int e = 0; e < N; ++e) {
          if (!Whole && (e < span.lo || e >= span.hi)) continue;
          A value;
          const A incoming = widen(in.grad.value[e]) * A(finish.scale);
          A passed = act.gradient(widen(in.z.value[e]), incoming, value);
          if (!finish.passes(value)) passed = A(0);
          out.value[e] = narrow<T>(passed);
          sum[e] += passed;
          if constexpr (!Whole) c.grad_z[e] = out.value[e];
        }
      });
      if constexpr (Whole) store<N>(c.grad_z, out);
    }
  }
};

}  // namespace opforge
