// SPDX-License-Identifier: Apache-2.0
// The two 8-bit floating point types of tensor cores (OCP FP8). Numbers too large become the
// largest one, NaN stays. Includes no torch header.
#pragma once

#include <opforge/core/types.h>

#include <cstdint>
#include <cstring>

namespace opforge {

// Sign, 4 bits of exponent, 3 of mantissa: up to 448, without infinities.
struct float8_e4m3 {
  uint8_t bits;
  static constexpr int kMantissa = 3, kLeastExponent = -6;  // of a normal number
  static constexpr uint8_t kMost = 0x7e;
  static constexpr float kLargest = 448.0f;
};

// Sign, 5 bits of exponent, 2 of mantissa: up to 57344, for gradients.
struct float8_e5m2 {
  uint8_t bits;
  static constexpr int kMantissa = 2, kLeastExponent = -14;
  static constexpr uint8_t kMost = 0x7b;
  static constexpr float kLargest = 57344.0f;
};

constexpr uint8_t kFloat8NaN = 0x7f;  // of both

namespace detail {

OPFORGE_HOST_DEVICE uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}
OPFORGE_HOST_DEVICE float float_of(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

// 2^exponent
OPFORGE_HOST_DEVICE constexpr uint32_t power_bits(int exponent) {
  return uint32_t(127 + exponent) << 23;
}

// Round to nearest, ties to even.
template <class T>
OPFORGE_HOST_DEVICE uint8_t rounded_to_float8(float x) {
  constexpr int kDropped = 23 - T::kMantissa;
  const uint32_t all = bits_of(x), bits = all & 0x7fffffffu;
  if (bits > 0x7f800000u) return kFloat8NaN;
  uint32_t result;
  if (bits < power_bits(T::kLeastExponent)) {
    // Adding a float whose last bit is the subnormal's last bit rounds it there.
    constexpr uint32_t kMagic = power_bits(T::kLeastExponent - T::kMantissa + 23);
    result = bits_of(float_of(bits) + float_of(kMagic)) - kMagic;
  } else {
    constexpr uint32_t kBias = uint32_t(126 + T::kLeastExponent) << 23;
    const uint32_t odd = bits >> kDropped & 1u;
    result = (bits + ((1u << (kDropped - 1)) - 1) + odd - kBias) >> kDropped;
  }
  return uint8_t((result < T::kMost ? result : T::kMost) | (all >> 24 & 0x80u));
}

template <class T>
OPFORGE_HOST_DEVICE float widened_float8(uint8_t x) {
  constexpr int kShift = 23 - T::kMantissa;
  const uint32_t sign = uint32_t(x & 0x80) << 24, magnitude = x & 0x7fu;
  if (magnitude > T::kMost) {  // with 5 bits of exponent, the first one is infinity
    const bool infinite = T::kMantissa == 2 && magnitude == T::kMost + 1u;
    return float_of(sign | (infinite ? 0x7f800000u : 0x7fc00000u));
  }
  // The bits under a float's exponent, rescaled: right for subnormal numbers, too.
  const float scaled =
      float_of(magnitude << kShift) * float_of(power_bits(126 + T::kLeastExponent));
  return float_of(bits_of(scaled) | sign);
}

}  // namespace detail

OPFORGE_HOST_DEVICE float widen(float8_e4m3 x) {
  return detail::widened_float8<float8_e4m3>(x.bits);
}
OPFORGE_HOST_DEVICE float widen(float8_e5m2 x) {
  return detail::widened_float8<float8_e5m2>(x.bits);
}

template <>
OPFORGE_HOST_DEVICE float8_e4m3 narrow<float8_e4m3>(float x) {
  return {detail::rounded_to_float8<float8_e4m3>(x)};
}
template <>
OPFORGE_HOST_DEVICE float8_e5m2 narrow<float8_e5m2>(float x) {
  return {detail::rounded_to_float8<float8_e5m2>(x)};
}

// Two numbers as a 16-bit word, the first one in its lower half: one instruction from compute
// capability 8.9 on.
template <class T>
OPFORGE_HOST_DEVICE uint16_t narrow_pair(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  uint16_t pair;
  if constexpr (T::kMantissa == 3) {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  }
  return pair;
#else
  return uint16_t(narrow<T>(low).bits | narrow<T>(high).bits << 8);
#endif
}

// Operands of two types, of the same size, for one product: those of a are A, those of b are B.
template <class A, class B>
struct Mixed {
  static_assert(sizeof(A) == sizeof(B));
  unsigned char bits[sizeof(A)];
};

}  // namespace opforge
