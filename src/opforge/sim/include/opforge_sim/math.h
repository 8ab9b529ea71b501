// SPDX-License-Identifier: Apache-2.0
// CUDA's device functions that plain C++ lacks. Each gives the GPU's bits, but for rsqrt; other
// approximate functions (__expf and its like) are left out, because nothing here could.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

using std::fma;
using std::fmaf;

namespace opforge::sim::detail {

// NaN gives the other argument; of two zeros the sign decides, as on the GPU.
template <class T>
OPFORGE_SIM_INLINE T least(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    return a == b ? (std::signbit(a) ? a : b) : std::fmin(a, b);
  } else {
    return a < b ? a : b;
  }
}
template <class T>
OPFORGE_SIM_INLINE T most(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    return a == b ? (std::signbit(a) ? b : a) : std::fmax(a, b);
  } else {
    return a > b ? a : b;
  }
}

}  // namespace opforge::sim::detail

// CUDA's min and max take mixed kinds, too.
#define OPFORGE_SIM_MINMAX(name, choose)                                         \
  template <class A, class B>                                                    \
    requires std::is_arithmetic_v<A> && std::is_arithmetic_v<B>                  \
  OPFORGE_SIM_INLINE std::common_type_t<A, B> name(A a, B b) {                   \
    return opforge::sim::detail::choose<std::common_type_t<A, B>>(a, b);         \
  }                                                                              \
  template <class A, class B>                                                    \
    requires opforge::sim::detail::WithIndex<A, B>                               \
  OPFORGE_SIM_INLINE auto name(A a, B b) {                                       \
    return name(opforge::sim::detail::plain(a), opforge::sim::detail::plain(b)); \
  }
OPFORGE_SIM_MINMAX(min, least)
OPFORGE_SIM_MINMAX(max, most)
#undef OPFORGE_SIM_MINMAX

// As good as can be; the GPU's is up to 2 units in the last place off (1 for double).
OPFORGE_SIM_INLINE float rsqrtf(float x) { return float(1 / std::sqrt(double(x))); }
OPFORGE_SIM_INLINE float rsqrt(float x) { return rsqrtf(x); }
OPFORGE_SIM_INLINE double rsqrt(double x) { return double(1 / std::sqrt((long double)(x))); }

OPFORGE_SIM_INLINE unsigned __umulhi(unsigned a, unsigned b) {
  return unsigned((uint64_t(a) * b) >> 32);
}
OPFORGE_SIM_INLINE int __mulhi(int a, int b) { return int((int64_t(a) * b) >> 32); }
OPFORGE_SIM_INLINE unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return (unsigned long long)(((unsigned __int128)(a)*b) >> 64);
}
OPFORGE_SIM_INLINE int __clz(int x) { return std::countl_zero(unsigned(x)); }
OPFORGE_SIM_INLINE int __clzll(long long x) { return std::countl_zero((unsigned long long)(x)); }
OPFORGE_SIM_INLINE int __ffs(int x) { return x == 0 ? 0 : std::countr_zero(unsigned(x)) + 1; }
OPFORGE_SIM_INLINE int __popc(unsigned x) { return std::popcount(x); }
OPFORGE_SIM_INLINE int __popcll(unsigned long long x) { return std::popcount(x); }

OPFORGE_SIM_INLINE int __float_as_int(float x) { return std::bit_cast<int>(x); }
OPFORGE_SIM_INLINE unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
OPFORGE_SIM_INLINE float __int_as_float(int x) { return std::bit_cast<float>(x); }
OPFORGE_SIM_INLINE float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }

OPFORGE_SIM_INLINE float __fmaf_rn(float a, float b, float c) { return std::fmaf(a, b, c); }
OPFORGE_SIM_INLINE float __fadd_rn(float a, float b) { return a + b; }
OPFORGE_SIM_INLINE float __fsub_rn(float a, float b) { return a - b; }
OPFORGE_SIM_INLINE float __fmul_rn(float a, float b) { return a * b; }
OPFORGE_SIM_INLINE double __dmul_rn(double a, double b) { return a * b; }
OPFORGE_SIM_INLINE float __fdiv_rn(float a, float b) { return a / b; }
OPFORGE_SIM_INLINE float __fsqrt_rn(float a) { return std::sqrt(a); }
