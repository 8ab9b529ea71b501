// SPDX-License-Identifier: Apache-2.0
// Activations of elements T and their gradients on the GPU. Includes no torch header.
//
// Each has value(x) and gradient(x, passed, value). That returns the gradient of x, where `passed`
// is the gradient of the value, and stores the value as well.
//
// float and double follow PyTorch's own kernels operation by operation, so that they round where
// those do; sums of products are fused as nvcc fuses them. At 16 bits, a kernel has time for some
// 30 instructions per element while memory delivers the next one, and a result is rounded to 11
// bits at most. So there the functions take fewer instructions, and differ from the exact ones by
// less than a hundred-thousandth (tests/ops/test_gated.py tries every argument).
#pragma once

#include <cuda_runtime.h>
#include <opforge/core/types.h>

#include <cmath>

namespace opforge {

template <class T>
constexpr bool kShort = sizeof(T) == 2;

// 2^x, 1 / x and the logarithm to base 2, within 2^-22, an instruction each. Results, and arguments
// of the last two, are 0 if they are below 2^-126.
__device__ __forceinline__ float roughly_exp2(float x) {
#if defined(OPFORGE_SIM)
  const float y = exp2f(x);
  return y < 0x1p-126f ? 0.0f : y;
#else
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}
__device__ __forceinline__ float roughly_inverse(float x) {
#if defined(OPFORGE_SIM)
  return 1.0f / x;
#else
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}
__device__ __forceinline__ float roughly_log2(float x) {
#if defined(OPFORGE_SIM)
  return log2f(x);
#else
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

// 1 / (1 + e^-x) and its derivative, by way of e^-|x|, which cannot overflow.
struct Logistic {
  float value, slope;

  __device__ __forceinline__ explicit Logistic(float x) {
    // The square of a root may be below 2^-126: silu(-90) is no zero.
    const float root = roughly_exp2(-0.72134752f * fabsf(x)), e = root * root;
    const float r = roughly_inverse(1.0f + e);
    value = x < 0.0f ? e * r : r;
    slope = e * r * r;
  }
};

// The normal distribution function and its density. Beyond x the area under the density is the
// density times Mills' ratio, here a polynomial in t = 1 / (1 + 0.3 |x|).
struct Normal {
  float value, density;

  __device__ __forceinline__ explicit Normal(float x) {
    density = roughly_exp2(-0.72134752f * x * x) * 0.39894228f;
    const float t = roughly_inverse(fmaf(0.3f, fabsf(x), 1.0f));
    float ratio = fmaf(t, -0.19325444f, 0.54152425f);
    ratio = fmaf(t, ratio, -0.042482205f);
    ratio = fmaf(t, ratio, 0.3614466f);
    ratio = fmaf(t, ratio, 0.28510875f);
    ratio = fmaf(t, ratio, 0.30098146f);
    const float tail = density * t * ratio;
    value = x < 0.0f ? tail : 1.0f - tail;
  }
};

template <class T>
struct Silu {  // x / (1 + e^-x)
  using A = compute_t<T>;

  __device__ __forceinline__ A value(A x) const {
    if constexpr (kShort<T>) return x * Logistic(x).value;
    return x / (A(1) + std::exp(-x));
  }
  __device__ __forceinline__ A gradient(A x, A passed, A& value) const {
    if constexpr (kShort<T>) {
      const Logistic s(x);
      value = x * s.value;
      return passed * fmaf(x, s.slope, s.value);
    } else {
      const A below = A(1) + std::exp(-x), sigmoid = A(1) / below;
      value = x / below;
      return passed * sigmoid * std::fma(x, A(1) - sigmoid, A(1));
    }
  }
};

template <class T>
struct Gelu {  // x Φ(x), or with tanh x (1 + tanh(u)) / 2, u = sqrt(2/π) (x + 0.044715 x³)
  using A = compute_t<T>;
  bool tanh;

  __device__ __forceinline__ A value(A x) const {
    if constexpr (kShort<T>) return x * (tanh ? Logistic(2.0f * inner(x)).value : Normal(x).value);
    return A(0.5) * x * (A(1) + (tanh ? std::tanh(inner(x)) : std::erf(x * A(kSqrtHalf))));
  }

  __device__ __forceinline__ A gradient(A x, A passed, A& value) const {
    A share, left, right;  // of x that comes out; left · right is x times the slope of that
    if (tanh) {
      if constexpr (kShort<T>) {
        const Logistic s(2.0f * inner(x));
        share = s.value;
        left = x * s.slope * 2.0f;
      } else {
        const A t = std::tanh(inner(x));
        share = A(0.5) * (A(1) + t);
        left = A(0.5) * x * std::fma(-t, t, A(1));
      }
      right = A(kSqrtTwoByPi) * std::fma(A(3 * kCubic), square(x), A(1));
    } else {
      left = x;
      if constexpr (kShort<T>) {
        const Normal n(x);
        share = n.value;
        right = n.density;
      } else {
        share = A(0.5) * (A(1) + std::erf(x * A(kSqrtHalf)));
        right = std::exp(A(-0.5) * x * x) * A(kSqrtTwoByPi / 2);
      }
    }
    value = x * share;
    return passed * std::fma(left, right, share);
  }

 private:
  static constexpr double kSqrtHalf = 0.70710678118654752, kSqrtTwoByPi = 0.79788456080286536;
  static constexpr double kCubic = 0.044715;

  __device__ __forceinline__ static A inner(A x) {
    return A(kSqrtTwoByPi) * std::fma(A(kCubic), x * x * x, x);
  }
  // Where a float's square is infinite, tanh is flat: 0 must not become 0 · inf.
  __device__ __forceinline__ static float square(float x) { return fminf(x * x, 1e30f); }
  __device__ __forceinline__ static double square(double x) { return x * x; }
};

template <class T>
struct Relu {  // keeps NaN and -0.0; at NaN the gradient passes
  using A = compute_t<T>;

  __device__ __forceinline__ A value(A x) const { return x < A(0) ? A(0) : x; }
  __device__ __forceinline__ A gradient(A x, A passed, A& result) const {
    result = value(x);
    return x <= A(0) ? A(0) : passed;
  }
};

}  // namespace opforge
