// SPDX-License-Identifier: Apache-2.0
// exp, log, tanh, erf and sigmoid of vectors on the CPU. In float: within 1.3 ulp, sigmoid 2.5, for
// every argument, subnormal numbers, infinities and NaN included; in double: the C library's, lane
// by lane. Includes no torch header.
//
// The polynomials are minimax fits (Remez) of the functions named beside them, weighted for the
// relative error of the result.
#pragma once

#include <opforge/cpu/vec.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace opforge {

using Ints = VectorOf<int32_t>::type;

OPFORGE_INLINE vec<float> magnitude(vec<float> x) {
  return std::bit_cast<vec<float>>(std::bit_cast<Bits>(x) & 0x7fffffffu);
}

OPFORGE_INLINE vec<double> magnitude(vec<double> x) { return x < 0 ? -x : x; }

// x, which is not negative, with the sign of another.
OPFORGE_INLINE vec<float> with_sign(vec<float> x, vec<float> of) {
  return std::bit_cast<vec<float>>(std::bit_cast<Bits>(x) |
                                   (std::bit_cast<Bits>(of) & 0x80000000u));
}

// c[0] + c[1] x + c[2] x² + ...
template <int N>
OPFORGE_INLINE vec<float> polynomial(vec<float> x, const float (&c)[N]) {
  vec<float> sum = c[N - 1] - vec<float>{};
#pragma GCC unroll 16
  for (int i = N - 2; i >= 0; --i) sum = fma(sum, x, c[i] - vec<float>{});
  return sum;
}

template <class F>
OPFORGE_INLINE vec<double> by_lane(vec<double> x, const F& f) {
  vec<double> y;
  for (int i = 0; i < kLanes<double>; ++i) y[i] = f(x[i]);
  return y;
}

// ln 2 in two parts; an exponent times the first is exact.
constexpr float kLn2High = 0x1.62e4p-1f, kLn2Low = 0x1.7f7d1cp-20f;

OPFORGE_INLINE vec<float> power_of_two(Ints k) {
  return std::bit_cast<vec<float>>((k + 127) << 23);
}

// (e^r - 1 - r) / r²
constexpr float kExp[] = {0x1.fffffcp-2f, 0x1.55548ap-3f, 0x1.555916p-5f, 0x1.123fc6p-7f,
                          0x1.6a1a6ep-10f};

OPFORGE_INLINE vec<float> exp(vec<float> x) {
  x = at_least(at_most(x, 89.0f), -104.0f);  // beyond, the result is infinite or 0 anyway
  // x = n ln 2 + r: adding 1.5 · 2^23 leaves the nearest whole number in the last bits.
  constexpr float round = 0x1.8p23f;
  const vec<float> shifted = fma(x, 1.44269504f - vec<float>{}, round - vec<float>{});
  const vec<float> n = shifted - round;
  const vec<float> rest = fma(n, -kLn2High - vec<float>{}, x);  // exact
  const vec<float> r = fma(n, -kLn2Low - vec<float>{}, rest);
  // 1 + r + r² p(r), with what the first sum and r itself lost in rounding.
  const vec<float> sum = r + 1.0f;
  const vec<float> lost = (1.0f - sum + r) + fma(n, -kLn2Low - vec<float>{}, rest - r);
  const vec<float> y = sum + fma(polynomial(r, kExp), r * r, lost);
  // Times 2^n in two steps, so that results on the way to 0 are rounded once.
  const Ints power = std::bit_cast<Ints>(shifted) - std::bit_cast<int32_t>(round);
  const Ints half = power >> 1;
  return y * power_of_two(half) * power_of_two(power - half);
}

// e^x as a number about 1 and 2^(n + bias - 127), within 2 ulp.
struct ExpParts {
  vec<float> about_one, power;

  OPFORGE_INLINE ExpParts(vec<float> x, float bias) {
    const float round = 0x1.8p23f + bias;  // leaves n with the bias, for the place of an exponent
    const vec<float> shifted = fma(x, 1.44269504f - vec<float>{}, round - vec<float>{});
    const vec<float> n = shifted - round;
    const vec<float> rest = fma(n, -kLn2High - vec<float>{}, x);
    const vec<float> r = fma(n, -kLn2Low - vec<float>{}, rest);
    about_one = fma(polynomial(r, kExp), r * r, r) + 1.0f;
    power = std::bit_cast<vec<float>>(std::bit_cast<Ints>(shifted) << 23);
  }
};

// exp() where x is at most 0, or NaN, in half the time: within 2 ulp, and 0 where the result would
// be subnormal.
OPFORGE_INLINE vec<float> exp_below(vec<float> x) {
  const ExpParts parts(x, 127);
  return x < -87.33654f ? vec<float>{} : parts.about_one * parts.power;
}

// The same for any x; what is below e^-86 is some number between 0 and that. 2^n itself may be
// beyond the largest number, so it is halved.
OPFORGE_INLINE vec<float> fast_exp(vec<float> x) {
  const ExpParts parts(at_least(at_most(x, 89.0f), -87.0f), 126);
  return (parts.about_one + parts.about_one) * parts.power;
}

OPFORGE_INLINE vec<double> exp_below(vec<double> x) {
  using Longs = VectorOf<int64_t>::type;
  constexpr double round = 0x1.8p52 + 1023;
  const vec<double> shifted = fma(x, 0x1.71547652b82fep0 - vec<double>{}, round - vec<double>{});
  const vec<double> n = shifted - round;
  const vec<double> rest = fma(n, -0x1.62e42fefa3800p-1 - vec<double>{}, x);
  const vec<double> r = fma(n, -0x1.ef35793c76730p-45 - vec<double>{}, rest);
  // The series of e^r; what is left out is below 2^-57.
  vec<double> sum = 1.0 / 6227020800.0 - vec<double>{};
  constexpr double factorials[] = {479001600, 39916800, 3628800, 362880, 40320, 5040,
                                   720,       120,      24,      6,      2};
#pragma GCC unroll 16
  for (const double f : factorials) sum = fma(sum, r, 1 / f - vec<double>{});
  const vec<double> y = fma(sum, r * r, r) + 1.0;
  const vec<double> power = std::bit_cast<vec<double>>(std::bit_cast<Longs>(shifted) << 52);
  return x < -708.396 ? vec<double>{} : y * power;
}

OPFORGE_INLINE vec<float> log(vec<float> x) {
  const auto subnormal = x < 0x1p-126f;
  const vec<float> scaled = subnormal ? x * 0x1p23f : x;
  // x = 2^e (1 + f) with 1 + f between sqrt(1/2) and sqrt(2).
  constexpr int32_t low = 0x3f3504f3;
  const Ints bits = std::bit_cast<Ints>(scaled), e = (bits - low) >> 23;
  const vec<float> f = std::bit_cast<vec<float>>(bits - (e << 23)) - 1.0f;
  const vec<float> power = __builtin_convertvector(subnormal ? e - 23 : e, vec<float>);
  // (log(1 + f) - f + f²/2) / f³
  constexpr float c[] = {0x1.555546p-2f,  -0x1.ffffeep-3f, 0x1.99a546p-3f,
                         -0x1.5562e4p-3f, 0x1.2332c2p-3f,  -0x1.fb4326p-4f,
                         0x1.e65078p-4f,  -0x1.e2e9bep-4f, 0x1.1b432ep-4f};
  const vec<float> square = f * f;
  vec<float> y = polynomial(f, c) * f * square;
  y = fma(power, kLn2Low - vec<float>{}, y);
  y = fma(square, -0.5f - vec<float>{}, y) + f;
  y = fma(power, kLn2High - vec<float>{}, y);
  constexpr float infinity = std::numeric_limits<float>::infinity();
  y = x == 0 ? -infinity - vec<float>{} : y;
  y = x < 0 ? std::numeric_limits<float>::quiet_NaN() - vec<float>{} : y;
  return x < infinity ? y : x;  // infinite or NaN
}

OPFORGE_INLINE vec<float> tanh(vec<float> x) {
  const vec<float> a = magnitude(x), square = x * x;
  // (tanh(x) / x - 1) / x², as a polynomial in x² up to 1
  constexpr float c[] = {-0x1.55553cp-2f, 0x1.110be2p-3f, -0x1.b96222p-5f, 0x1.600994p-6f,
                         -0x1.0460c8p-7f, 0x1.2da5p-9f,   -0x1.77dd46p-12f};
  const vec<float> small = fma(polynomial(square, c) * square, a, a);
  const vec<float> e = exp_below(-2.0f * a), large = 1.0f - 2.0f * e / (e + 1.0f);
  return with_sign(a < 1.0f ? small : large, x);
}

// By way of e^(-x²), which the derivative takes, too.
OPFORGE_INLINE vec<float> erf(vec<float> x, vec<float> decay) {
  const vec<float> a = magnitude(x);
  // erf(x) / x - 1, as a polynomial in x² up to 1
  constexpr float c[] = {0x1.06eba8p-3f, -0x1.81273ep-2f, 0x1.ce2cf8p-4f, -0x1.b7f90ep-6f,
                         0x1.5405b2p-8f, -0x1.a3f7p-11f,  0x1.496a34p-14f};
  const vec<float> small = fma(polynomial(x * x, c), a, a);
  // (1 - erf(x)) e^(x²), as a polynomial in x - 2, from 1 to 4, where erf(x) has become 1
  constexpr float d[] = {0x1.05869p-2f,  -0x1.b573dep-4f, 0x1.562e9p-5f,   -0x1.fb8e9ep-7f,
                         0x1.6db2e8p-8f, -0x1.a3bbfp-10f, 0x1.21cb58p-11f, -0x1.9ceb48p-12f};
  const vec<float> large = 1.0f - decay * polynomial(at_most(a, 4.0f) - 2.0f, d);
  return with_sign(a < 1.0f ? small : large, x);
}

OPFORGE_INLINE vec<float> erf(vec<float> x) { return erf(x, exp_below(-x * x)); }

OPFORGE_INLINE vec<double> exp(vec<double> x) {
  return by_lane(x, [](double v) { return std::exp(v); });
}
OPFORGE_INLINE vec<double> fast_exp(vec<double> x) { return exp(x); }
OPFORGE_INLINE vec<double> log(vec<double> x) {
  return by_lane(x, [](double v) { return std::log(v); });
}
OPFORGE_INLINE vec<double> tanh(vec<double> x) {
  return by_lane(x, [](double v) { return std::tanh(v); });
}
OPFORGE_INLINE vec<double> erf(vec<double> x) {
  return by_lane(x, [](double v) { return std::erf(v); });
}
OPFORGE_INLINE vec<double> erf(vec<double> x, vec<double>) { return erf(x); }

// 1 / (1 + e^-x), by way of e^-|x|, which cannot overflow.
template <class V>
OPFORGE_INLINE V sigmoid(V x) {
  const V e = exp(-magnitude(x));
  return (x < 0 ? e : 1 - V{}) / (e + 1);
}

}  // namespace opforge
