// SPDX-License-Identifier: Apache-2.0
// Element types and the type each is computed in. Includes no torch header.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#define OPFORGE_HOST_DEVICE __host__ __device__ __forceinline__
#else
#include <bit>
#if defined(__F16C__)
#include <immintrin.h>
#endif
#define OPFORGE_HOST_DEVICE inline
#endif

namespace opforge {

#if defined(__CUDACC__)

using half = __half;
using bfloat16 = __nv_bfloat16;

OPFORGE_HOST_DEVICE float widen(half x) { return __half2float(x); }
OPFORGE_HOST_DEVICE float widen(bfloat16 x) { return __bfloat162float(x); }

template <class T>
OPFORGE_HOST_DEVICE T narrow(float x) {
  return T(x);
}
template <>
OPFORGE_HOST_DEVICE half narrow<half>(float x) {
  return __float2half_rn(x);
}
template <>
OPFORGE_HOST_DEVICE bfloat16 narrow<bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

#else

// Without nvcc the 16-bit types are ours, so that a host compiler is all that is needed.
struct half {
  uint16_t bits;
};
struct bfloat16 {
  uint16_t bits;
};

inline float widen(bfloat16 x) { return std::bit_cast<float>(uint32_t(x.bits) << 16); }

inline float widen(half x) {
#if defined(__F16C__)
  return _cvtsh_ss(x.bits);
#else
  // Shift the 15 value bits under a float's exponent and rescale by 2^112: right for normal and
  // subnormal numbers; infinities and NaN get their exponent set by hand.
  const uint32_t sign = uint32_t(x.bits & 0x8000) << 16;
  const uint32_t magnitude = uint32_t(x.bits & 0x7fff) << 13;
  if ((x.bits & 0x7c00) == 0x7c00) return std::bit_cast<float>(sign | 0x7f800000u | magnitude);
  const float scaled = std::bit_cast<float>(magnitude) * 0x1p112f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(scaled));
#endif
}

template <class T>
inline T narrow(float x) {
  return T(x);
}

// Round to nearest, ties to even; NaN stays NaN. Free of branches, so that loops vectorise.
template <>
inline bfloat16 narrow<bfloat16>(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return {uint16_t(x != x ? 0x7fc0u : rounded)};
}

template <>
inline half narrow<half>(float x) {
#if defined(__F16C__)
  return {uint16_t(_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT))};
#else
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint16_t sign = uint16_t((bits >> 16) & 0x8000u);
  const float magnitude = std::bit_cast<float>(bits & 0x7fffffffu);
  if (x != x) return {uint16_t(sign | 0x7e00u)};
  if (magnitude >= 65520.0f) return {uint16_t(sign | 0x7c00u)};
  if (magnitude < 0x1p-14f) {
    // Adding 0.5 puts the subnormal's last bit at the float's last bit, which rounds it.
    const uint32_t shifted = std::bit_cast<uint32_t>(magnitude + 0.5f);
    return {uint16_t(sign | (shifted - 0x3f000000u))};
  }
  const uint32_t m = std::bit_cast<uint32_t>(magnitude);
  return {uint16_t(sign | ((m + 0xfffu + ((m >> 13) & 1u) - 0x38000000u) >> 13))};
#endif
}

#endif

OPFORGE_HOST_DEVICE float widen(float x) { return x; }
OPFORGE_HOST_DEVICE double widen(double x) { return x; }

template <class T>
OPFORGE_HOST_DEVICE T narrow(double x) {
  return T(x);
}

enum class DType { f32, f16, bf16, f64 };

// Sums and products are made in float for everything up to float, in double for double.
template <class T>
struct Compute {
  using type = float;
};
template <>
struct Compute<double> {
  using type = double;
};
template <class T>
using compute_t = typename Compute<T>::type;

}  // namespace opforge
