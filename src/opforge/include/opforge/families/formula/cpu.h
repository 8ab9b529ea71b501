// SPDX-License-Identifier: Apache-2.0
// What a formula of one element is written with on the CPU: CUDA's functions under their names, for
// one value, and some for a vector of them. Includes no torch header.
#pragma once

#include <math.h>  // in namespace std and, unlike <cmath>, also outside of it for float
#include <opforge/cpu/math.h>

#include <concepts>
#include <type_traits>

#define OPFORGE_FORMULA OPFORGE_INLINE

namespace opforge {

template <class V>
concept OfLanes = std::same_as<V, vec<float>> || std::same_as<V, vec<double>>;

// A number in the type that the formula is computed in.
template <class real>
OPFORGE_INLINE real number(double value) {
  if constexpr (OfLanes<real>) {
    return std::remove_cvref_t<decltype(real{}[0])>(value) - real{};
  } else {
    return real(value);
  }
}

// Like CUDA's: of a number and NaN, the number.
template <OfLanes V>
OPFORGE_INLINE V min(V a, V b) {
  return (a < b) | (b != b) ? a : b;
}
template <OfLanes V>
OPFORGE_INLINE V max(V a, V b) {
  return (a > b) | (b != b) ? a : b;
}
template <class A, class B>
  requires std::is_arithmetic_v<A> && std::is_arithmetic_v<B>
OPFORGE_INLINE std::common_type_t<A, B> min(A a, B b) {
  return a < b || b != b ? a : b;
}
template <class A, class B>
  requires std::is_arithmetic_v<A> && std::is_arithmetic_v<B>
OPFORGE_INLINE std::common_type_t<A, B> max(A a, B b) {
  return a > b || b != b ? a : b;
}

template <OfLanes V>
OPFORGE_INLINE V abs(V x) {
  return magnitude(x);
}
template <OfLanes V>
OPFORGE_INLINE V fabs(V x) {
  return magnitude(x);
}
template <OfLanes V>
OPFORGE_INLINE V sqrt(V x) {
  for (size_t i = 0; i < sizeof x / sizeof x[0]; ++i) x[i] = ::sqrt(x[i]);
  return x;
}
template <OfLanes V>
OPFORGE_INLINE V rsqrt(V x) {
  return number<V>(1) / sqrt(x);
}
OPFORGE_INLINE float rsqrt(float x) { return 1 / ::sqrt(x); }
OPFORGE_INLINE double rsqrt(double x) { return 1 / ::sqrt(x); }

// The larger and the smaller of two numbers; NaN if one of them is.
template <OfLanes V>
OPFORGE_INLINE V larger(V a, V b) {
  return (a > b) | (a != a) ? a : b;
}
template <OfLanes V>
OPFORGE_INLINE V smaller(V a, V b) {
  return (a < b) | (a != a) ? a : b;
}

// -1, 0 or 1; 0 for NaN.
template <OfLanes V>
OPFORGE_INLINE V sign(V x) {
  return x > 0 ? number<V>(1) : x < 0 ? number<V>(-1) : V{};
}

// Functions of the C library, lane by lane.
#define OPFORGE_BY_LANE(f)                                                \
  template <OfLanes V>                                                    \
  OPFORGE_INLINE V f(V x) {                                               \
    for (size_t i = 0; i < sizeof x / sizeof x[0]; ++i) x[i] = ::f(x[i]); \
    return x;                                                             \
  }
OPFORGE_BY_LANE(log1p)
OPFORGE_BY_LANE(log2)
OPFORGE_BY_LANE(log10)
OPFORGE_BY_LANE(expm1)
OPFORGE_BY_LANE(exp2)
OPFORGE_BY_LANE(erfc)
OPFORGE_BY_LANE(sin)
OPFORGE_BY_LANE(cos)
OPFORGE_BY_LANE(tan)
OPFORGE_BY_LANE(asin)
OPFORGE_BY_LANE(acos)
OPFORGE_BY_LANE(atan)
OPFORGE_BY_LANE(sinh)
OPFORGE_BY_LANE(cosh)
OPFORGE_BY_LANE(floor)
OPFORGE_BY_LANE(ceil)
OPFORGE_BY_LANE(trunc)
OPFORGE_BY_LANE(rint)
#undef OPFORGE_BY_LANE
template <OfLanes V>
OPFORGE_INLINE V pow(V x, V y) {
  for (size_t i = 0; i < sizeof x / sizeof x[0]; ++i) x[i] = ::pow(x[i], y[i]);
  return x;
}

}  // namespace opforge
