// SPDX-License-Identifier: Apache-2.0
// Vectors for CPU kernels. Includes no torch header.
#pragma once

#include <opforge/core/layout.h>
#include <opforge/core/types.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>

#if defined(__AVX__)
#include <immintrin.h>
#endif

// Without AVX, gcc warns about the calling convention of functions that take vectors. It does not
// matter here, because all of them are inlined.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wpsabi"
#endif
#define OPFORGE_INLINE inline __attribute__((always_inline))

namespace opforge {

// 32 bytes of the compute type: a register with AVX, two with SSE or NEON. The compiler's own
// vectors have the operators +, *, <, ?: lane by lane, and need no instruction set by name.
template <class C>
struct VectorOf {
  typedef C type __attribute__((vector_size(32)));
};
template <class T>
using vec = typename VectorOf<compute_t<T>>::type;
template <class T>
constexpr int64_t kLanes = 32 / sizeof(compute_t<T>);

using Bits = VectorOf<uint32_t>::type;
typedef uint16_t HalfBits __attribute__((vector_size(16)));

OPFORGE_INLINE vec<float> load(const float* p) {
  vec<float> v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

OPFORGE_INLINE vec<double> load(const double* p) {
  vec<double> v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

// Eight numbers of 16 bits.
OPFORGE_INLINE Bits load_halves(const void* p) {
  HalfBits raw;
  std::memcpy(&raw, p, sizeof raw);
#if defined(__AVX2__)  // what __builtin_convertvector means, but gcc 12 makes it four instructions
  return Bits(_mm256_cvtepu16_epi32(__m128i(raw)));
#else
  return __builtin_convertvector(raw, Bits);
#endif
}

OPFORGE_INLINE vec<bfloat16> load(const bfloat16* p) {
  return std::bit_cast<vec<float>>(load_halves(p) << 16);
}

OPFORGE_INLINE vec<half> load(const half* p) {
#if defined(__F16C__)
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#else
  vec<half> v;
  for (int i = 0; i < 8; ++i) v[i] = widen(p[i]);
  return v;
#endif
}

OPFORGE_INLINE void store(float* p, vec<float> v) { std::memcpy(p, &v, sizeof v); }

OPFORGE_INLINE void store(double* p, vec<double> v) { std::memcpy(p, &v, sizeof v); }

OPFORGE_INLINE void store(bfloat16* p, vec<bfloat16> v) {
  const Bits bits = std::bit_cast<Bits>(v);
  const Bits rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;  // as narrow<bfloat16>
  const Bits quiet_nan = Bits{} + 0x7fc0u;
  const Bits wide = v != v ? quiet_nan : rounded;
#if defined(__AVX2__)  // the same, but gcc 12 first clears the upper halves, which are clear
  const HalfBits raw = HalfBits(_mm_packus_epi32(_mm256_castsi256_si128(__m256i(wide)),
                                                 _mm256_extracti128_si256(__m256i(wide), 1)));
#else
  const HalfBits raw = __builtin_convertvector(wide, HalfBits);
#endif
  std::memcpy(p, &raw, sizeof raw);
}

OPFORGE_INLINE void store(half* p, vec<half> v) {
#if defined(__F16C__)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
#else
  for (int i = 0; i < 8; ++i) p[i] = narrow<half>(v[i]);
#endif
}

// n lanes, `stride` elements apart; the lanes after them are 0.
template <class T>
OPFORGE_INLINE vec<T> load_some(const T* p, int64_t stride, int64_t n) {
  compute_t<T> lanes[kLanes<T>] = {};
  for (int64_t i = 0; i < n; ++i) lanes[i] = widen(p[i * stride]);
  return load(lanes);
}

template <class T>
OPFORGE_INLINE vec<T> load(const T* p, int64_t stride) {
  if (stride == 1) return load(p);
  if (stride == 0) return widen(*p) - vec<T>{};
  vec<T> v;
  for (int i = 0; i < kLanes<T>; ++i) v[i] = widen(p[i * stride]);
  return v;
}

template <class T>
OPFORGE_INLINE void store_some(T* p, int64_t stride, int64_t n, vec<T> v) {
  compute_t<T> lanes[kLanes<T>];
  store(lanes, v);
  for (int64_t i = 0; i < n; ++i) p[i * stride] = narrow<T>(lanes[i]);
}

// a * b + c, rounded once where the CPU can. (Elsewhere an exact fma would be a slow library call.)
OPFORGE_INLINE vec<float> fma(vec<float> a, vec<float> b, vec<float> c) {
#if defined(__FMA__)
  return _mm256_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}

OPFORGE_INLINE vec<double> fma(vec<double> a, vec<double> b, vec<double> c) {
#if defined(__FMA__)
  return _mm256_fmadd_pd(a, b, c);
#else
  return a * b + c;
#endif
}

// x, but no less or no more than a bound; NaN stays. (The operator ?: makes four instructions.)
OPFORGE_INLINE vec<float> at_least(vec<float> x, float low) {
#if defined(__AVX__)
  return _mm256_max_ps(low - vec<float>{}, x);
#else
  return x < low ? low - vec<float>{} : x;
#endif
}
OPFORGE_INLINE vec<float> at_most(vec<float> x, float high) {
#if defined(__AVX__)
  return _mm256_min_ps(high - vec<float>{}, x);
#else
  return x > high ? high - vec<float>{} : x;
#endif
}

// Keeps NaN and -0.0.
template <class V>
OPFORGE_INLINE V rectify(V v) {
  return v < 0 ? V{} : v;
}

// The gradient of rectify, told by its result: NaN lets the gradient pass.
template <class V>
OPFORGE_INLINE V rectify_gradient(V grad, V y) {
  return y <= 0 ? V{} : grad;
}

}  // namespace opforge
