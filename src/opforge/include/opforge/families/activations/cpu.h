// SPDX-License-Identifier: Apache-2.0
// The activations of families/activations/device.cuh, of CPU vectors. Includes no torch header.
#pragma once

#include <opforge/cpu/math.h>

namespace opforge {

template <class T>
constexpr bool kShort = sizeof(T) == 2;

// 2^f for f between -1/2 and 1/2, within a millionth
constexpr float kTwoToThe[] = {0.999999261f, 0.693121815f, 0.240247448f, 0.0559178603f,
                               0.00957010186f};

// e^x for x <= 0 within a hundred-thousandth: for what is rounded to 16 bits.
OPFORGE_INLINE vec<float> roughly_exp(vec<float> x) {
  const vec<float> zero{}, log2e = 1.44269504f - zero;
  const vec<float> clamped = at_least(x, -87.0f);
  constexpr float round = 0x1.8p23f;
  const vec<float> shifted = fma(clamped, log2e, round - zero);
  const vec<float> y = polynomial(fma(clamped, log2e, round - shifted), kTwoToThe);
  // The whole part goes to the exponent. The low bits of a NaN from 16 bits are 0: it stays one.
  const vec<float> scaled =
      std::bit_cast<vec<float>>(std::bit_cast<Ints>(y) + (std::bit_cast<Ints>(shifted) << 23));
  return x < -87.0f ? zero : scaled;
}

// e^x in the same way for any x, at least 2^-126, and infinite from 88.4 on.
OPFORGE_INLINE vec<float> roughly_any_exp(vec<float> x) {
  const vec<float> zero{}, log2e = 1.44269504f - zero;
  const vec<float> clamped = at_least(at_most(x, 89.0f), -87.0f);
  constexpr float round = 0x1.8p23f + 127;  // leaves the whole part with the bias of an exponent
  const vec<float> shifted = fma(clamped, log2e, round - zero);
  const vec<float> y = polynomial(fma(clamped, log2e, round - shifted), kTwoToThe);
  return y * std::bit_cast<vec<float>>(std::bit_cast<Ints>(shifted) << 23);
}

struct Logistic {
  vec<float> value, slope;

  OPFORGE_INLINE explicit Logistic(vec<float> x) {
    const vec<float> e = roughly_exp(-magnitude(x)), r = 1.0f / (e + 1.0f);
    value = x < 0 ? e * r : r;
    slope = e * r * r;
  }
};

struct Normal {
  vec<float> value, density;

  OPFORGE_INLINE explicit Normal(vec<float> x) {
    density = roughly_exp(-0.5f * x * x) * 0.39894228f;
    const vec<float> t = 1.0f / (magnitude(x) * 0.3f + 1.0f);
    constexpr float c[] = {0.30098146f,   0.28510875f, 0.3614466f,
                           -0.042482205f, 0.54152425f, -0.19325444f};
    const vec<float> tail = density * t * polynomial(t, c);
    value = x < 0 ? tail : 1.0f - tail;
  }
};

template <class T>
struct Silu {
  using V = vec<T>;

  OPFORGE_INLINE V value(V x) const { return x / below(x); }
  OPFORGE_INLINE V gradient(V x, V passed, V& value) const {
    const V below = this->below(x), sigmoid = 1 / below;
    value = kShort<T> ? x * sigmoid : x / below;
    return passed * sigmoid * fma(x, 1 - sigmoid, 1 - V{});
  }

 private:
  OPFORGE_INLINE static V below(V x) {
    if constexpr (kShort<T>) return roughly_any_exp(-x) + 1;
    return fast_exp(-x) + 1;
  }
};

template <class T, bool by_tanh>
struct Gelu {
  using V = vec<T>;
  using A = compute_t<T>;

  OPFORGE_INLINE V value(V x) const { return x * share(x); }

  OPFORGE_INLINE V gradient(V x, V passed, V& value) const {
    V share, left = x, right;
    if constexpr (by_tanh) {
      if constexpr (kShort<T>) {
        const Logistic s(2 * inner(x));
        share = s.value;
        left *= s.slope * 2;
      } else {
        const V t = tanh(inner(x));
        share = A(0.5) * (t + 1);
        left *= A(0.5) * fma(-t, t, 1 - V{});
      }
      right = A(kSqrtTwoByPi) * fma(A(3 * kCubic) - V{}, square(x), 1 - V{});
    } else if constexpr (kShort<T>) {
      const Normal n(x);
      share = n.value;
      right = n.density;
    } else {
      const V decay = exp_below(A(-0.5) * x * x);
      share = A(0.5) * (erf(x * A(kSqrtHalf), decay) + 1);
      right = decay * A(kSqrtTwoByPi / 2);
    }
    value = x * share;
    return passed * fma(left, right, share);
  }

 private:
  static constexpr double kSqrtHalf = 0.70710678118654752, kSqrtTwoByPi = 0.79788456080286536;
  static constexpr double kCubic = 0.044715;

  OPFORGE_INLINE static V share(V x) {
    if constexpr (kShort<T>) {
      if constexpr (by_tanh) return Logistic(2 * inner(x)).value;
      return Normal(x).value;
    } else {
      return A(0.5) * ((by_tanh ? tanh(inner(x)) : erf(x * A(kSqrtHalf))) + 1);
    }
  }
  OPFORGE_INLINE static V inner(V x) {
    return A(kSqrtTwoByPi) * fma(A(kCubic) - V{}, x * x * x, x);
  }
  OPFORGE_INLINE static V square(V x) {
    if constexpr (sizeof(A) == 8) return x * x;
    return x * x < A(1e30) ? x * x : A(1e30) - V{};
  }
};

template <class T>
struct Relu {
  using V = vec<T>;

  OPFORGE_INLINE V value(V x) const { return rectify(x); }
  OPFORGE_INLINE V gradient(V x, V passed, V& value) const {
    value = rectify(x);
    return rectify_gradient(passed, x);
  }
};

}  // namespace opforge
