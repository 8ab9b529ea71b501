// SPDX-License-Identifier: Apache-2.0
// Activations and their gradients on the GPU. Includes no torch header.
//
// Each has value(x) and gradient(x, passed, value): the gradient of x where `passed` is that of the
// value, which it gives as well. The order of operations is that of PyTorch's own kernels, so that
// float32 rounds where they do; the sums of products are fused as nvcc fuses them.
#pragma once

#include <opforge/types.h>

#include <cmath>

namespace opforge {

struct Silu {  // x / (1 + e^-x)
  template <class A>
  __device__ __forceinline__ A value(A x) const {
    return x / (A(1) + std::exp(-x));
  }
  template <class A>
  __device__ __forceinline__ A gradient(A x, A passed, A& value) const {
    const A below = A(1) + std::exp(-x), sigmoid = A(1) / below;
    value = x / below;
    return passed * sigmoid * std::fma(x, A(1) - sigmoid, A(1));
  }
};

struct Gelu {  // x Φ(x), or with tanh x (1 + tanh(u)) / 2, u = sqrt(2/π) (x + 0.044715 x³)
  bool tanh;

  template <class A>
  __device__ __forceinline__ A value(A x) const {
    return A(0.5) * x * (A(1) + (tanh ? std::tanh(inner(x)) : std::erf(x * A(kSqrtHalf))));
  }
  template <class A>
  __device__ __forceinline__ A gradient(A x, A passed, A& value) const {
    // The value is x (1 + odd) / 2; left · right is x / 2 times the slope of odd.
    A odd, left, right;
    if (tanh) {
      odd = std::tanh(inner(x));
      left = A(0.5) * x * std::fma(-odd, odd, A(1));
      right = A(kSqrtTwoByPi) * std::fma(A(3 * kCubic), square(x), A(1));
    } else {
      odd = std::erf(x * A(kSqrtHalf));
      left = x;
      right = std::exp(A(-0.5) * x * x) * A(kSqrtTwoByPi / 2);
    }
    value = A(0.5) * x * (A(1) + odd);
    return passed * std::fma(left, right, A(0.5) * (A(1) + odd));
  }

 private:
  static constexpr double kSqrtHalf = 0.70710678118654752, kSqrtTwoByPi = 0.79788456080286536;
  static constexpr double kCubic = 0.044715;

  template <class A>
  __device__ __forceinline__ static A inner(A x) {
    return A(kSqrtTwoByPi) * std::fma(A(kCubic), x * x * x, x);
  }
  // Where a float's square is infinite, tanh is flat: 0 must not become 0 · inf.
  __device__ __forceinline__ static float square(float x) { return fminf(x * x, 1e30f); }
  __device__ __forceinline__ static double square(double x) { return x * x; }
};

struct Relu {  // keeps NaN and -0.0; at NaN the gradient passes
  template <class A>
  __device__ __forceinline__ A value(A x) const {
    return x < A(0) ? A(0) : x;
  }
  template <class A>
  __device__ __forceinline__ A gradient(A x, A passed, A& result) const {
    result = value(x);
    return x <= A(0) ? A(0) : passed;
  }
};

}  // namespace opforge
