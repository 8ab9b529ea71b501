// SPDX-License-Identifier: Apache-2.0
// The activations of activations.cuh, of CPU vectors. Includes no torch header.
#pragma once

#include <opforge/cpu_math.h>

namespace opforge {

struct Silu {
  template <class V>
  OPFORGE_INLINE V value(V x) const {
    return x / (exp(-x) + 1);
  }
  template <class V>
  OPFORGE_INLINE V gradient(V x, V passed, V& value) const {
    const V below = exp(-x) + 1, sigmoid = 1 / below;
    value = x / below;
    return passed * sigmoid * fma(x, 1 - sigmoid, 1 - V{});
  }
};

template <bool by_tanh>
struct Gelu {
  template <class V>
  OPFORGE_INLINE V value(V x) const {
    return number<V>(0.5) * x * (odd(x) + 1);
  }
  template <class V>
  OPFORGE_INLINE V gradient(V x, V passed, V& value) const {
    const V t = odd(x);
    V left = x, right;
    if constexpr (by_tanh) {
      left *= number<V>(0.5) * fma(-t, t, 1 - V{});
      right = number<V>(kSqrtTwoByPi) * fma(number<V>(3 * kCubic), square(x), 1 - V{});
    } else {
      right = exp(number<V>(-0.5) * x * x) * number<V>(kSqrtTwoByPi / 2);
    }
    value = number<V>(0.5) * x * (t + 1);
    return passed * fma(left, right, number<V>(0.5) * (t + 1));
  }

 private:
  static constexpr double kSqrtHalf = 0.70710678118654752, kSqrtTwoByPi = 0.79788456080286536;
  static constexpr double kCubic = 0.044715;

  template <class V>
  OPFORGE_INLINE static V number(double c) {
    return std::remove_cvref_t<decltype(V{}[0])>(c) - V{};
  }
  template <class V>
  OPFORGE_INLINE static V odd(V x) {
    if constexpr (by_tanh) {
      return tanh(number<V>(kSqrtTwoByPi) * fma(number<V>(kCubic), x * x * x, x));
    } else {
      return erf(x * number<V>(kSqrtHalf));
    }
  }
  OPFORGE_INLINE static vec<float> square(vec<float> x) {
    return x * x < 1e30f ? x * x : 1e30f - vec<float>{};
  }
  OPFORGE_INLINE static vec<double> square(vec<double> x) { return x * x; }
};

struct Relu {
  template <class V>
  OPFORGE_INLINE V value(V x) const {
    return rectify(x);
  }
  template <class V>
  OPFORGE_INLINE V gradient(V x, V passed, V& value) const {
    value = rectify(x);
    return rectify_gradient(passed, x);
  }
};

}  // namespace opforge
