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

}  // namespace opforge
