// SPDX-License-Identifier: Apache-2.0
// Random numbers without state: Philox4x32-10 (Salmon, Moraes, Dror and Shaw, 2011). Element i of a
// tensor gets 16 bits, half i % 8 of philox(seed, i / 8): of word (i % 8) / 2 the low half if i is
// even, the high half if it is odd. What is dropped follows from the seed and the element's number
// alone, never from layout, vector width, launch or device. 16 bits make p a multiple of 2^-16,
// rounded to the nearest; what is kept is scaled by the p that was rounded, so that the mean stays.
// Includes no torch header.
#pragma once

#include <opforge/core/types.h>

#include <cstdint>

namespace opforge {

struct PhiloxWords {
  uint32_t word[4];
};

constexpr uint32_t kPhiloxFactor0 = 0xD2511F53u, kPhiloxFactor1 = 0xCD9E8D57u;
constexpr uint32_t kPhiloxKeyStep0 = 0x9E3779B9u, kPhiloxKeyStep1 = 0xBB67AE85u;
constexpr int kPhiloxRounds = 10;

// One instruction on the GPU; nvcc makes a product of 64-bit numbers of the plain form.
OPFORGE_HOST_DEVICE void multiply(uint32_t a, uint32_t b, uint32_t& high, uint32_t& low) {
#if defined(__CUDA_ARCH__)
  asm("{.reg .u64 p;\n mul.wide.u32 p, %2, %3;\n mov.b64 {%0, %1}, p;}"
      : "=r"(low), "=r"(high)
      : "r"(a), "r"(b));
#else
  const uint64_t product = uint64_t(a) * b;
  high = uint32_t(product >> 32);
  low = uint32_t(product);
#endif
}

// Four words for each of some counters of 128 bits that follow each other, low half first. Round by
// round, so that they share the keys of a round.
template <int Calls>
OPFORGE_HOST_DEVICE void philox(uint64_t key, uint64_t low, uint64_t high,
                                PhiloxWords (&out)[Calls]) {
  uint32_t k0 = uint32_t(key), k1 = uint32_t(key >> 32);
#if defined(__CUDA_ARCH__)
  // Else the compiler would keep the keys of all rounds for the next time: 20 registers.
  asm volatile("" : "+r"(k0), "+r"(k1));
#endif
#if defined(__CUDACC__)
#pragma unroll
#endif
  for (int i = 0; i < Calls; ++i) {
    const uint64_t counter = low + uint64_t(i);
    out[i] = {{uint32_t(counter), uint32_t(counter >> 32), uint32_t(high), uint32_t(high >> 32)}};
  }
#if defined(__CUDACC__)
#pragma unroll
#endif
  for (int round = 0; round < kPhiloxRounds; ++round) {
#if defined(__CUDACC__)
#pragma unroll
#endif
    for (int i = 0; i < Calls; ++i) {
      uint32_t (&c)[4] = out[i].word;
      uint32_t high0, low0, high2, low2;
      multiply(kPhiloxFactor0, c[0], high0, low0);
      multiply(kPhiloxFactor1, c[2], high2, low2);
      c[0] = high2 ^ c[1] ^ k0;
      c[1] = low2;
      c[2] = high0 ^ c[3] ^ k1;
      c[3] = low0;
    }
    k0 += kPhiloxKeyStep0;
    k1 += kPhiloxKeyStep1;
  }
}

OPFORGE_HOST_DEVICE PhiloxWords philox(uint64_t key, uint64_t low, uint64_t high = 0) {
  PhiloxWords out[1];
  philox(key, low, high, out);
  return out[0];
}

// An element is dropped if its half, shifted up by 16 bits, is below the threshold, whose low 16
// bits are zero: those of a word then do not matter, and a high half needs no shift.
constexpr uint32_t kDropAll = 0xffffffffu;  // the only other threshold: drops all

// The threshold for dropping with probability p, from 0 (nothing) to 1 (everything). Below 1 it is
// rounded to at most 1 - 2^-16, below 2^-17 to 0.
OPFORGE_HOST_DEVICE uint32_t drop_threshold(double p) {
  if (p >= 1) return kDropAll;
  const uint32_t rounded = uint32_t(p * 65536 + 0.5);
  return (rounded < 65535 ? rounded : 65535) << 16;
}

// What the others are multiplied with, so that the mean stays: 1 / (1 - the rounded p).
OPFORGE_HOST_DEVICE double kept_scale(double p) {
  return p < 1 ? 65536 / double(65536 - (drop_threshold(p) >> 16)) : 0.0;
}

// The halves of the elements first, first + 1, ..., shifted up by 16 bits. Their low bits, and the
// halves of elements below 0, are undefined. One call of philox makes eight halves. If N is a power
// of two and the compiler sees that `first` is a multiple of it, there are as few calls as
// possible; otherwise there may be one more.
template <int N>
OPFORGE_HOST_DEVICE void draw_halves(uint64_t seed, int64_t first, uint32_t (&half)[N]) {
  static_assert(N >= 1 && N <= 16);
  constexpr int kCertain = (N + 7) / 8, kCalls = (N + 14) / 8;  // one more at most
  constexpr int kWords = (N + 1) / 2;                           // that are wanted in the end
  const int skip = int(first & 7);
  const uint64_t counter = uint64_t(first >> 3);
  PhiloxWords certain[kCertain], last = {};
  philox(seed, counter, 0, certain);
  if (kCalls > kCertain && skip > 8 * kCertain - N) last = philox(seed, counter + kCertain);
  uint32_t word[kWords + 4] = {};
  for (int i = 0; i < kWords + 4 && i < 4 * kCalls; ++i) {
    word[i] = i < 4 * kCertain ? certain[i / 4].word[i % 4] : last.word[i % 4];
  }
  // A variable index would put the words into memory: move them down by two, by one, by a half.
  if (skip & 4) {
    for (int i = 0; i < kWords + 2; ++i) word[i] = word[i + 2];
  }
  if (skip & 2) {
    for (int i = 0; i < kWords + 1; ++i) word[i] = word[i + 1];
  }
  if (skip & 1) {
    for (int i = 0; i < kWords; ++i) word[i] = word[i] >> 16 | word[i + 1] << 16;
  }
  for (int i = 0; i < N; ++i) half[i] = i % 2 == 0 ? word[i / 2] << 16 : word[i / 2];
}

// Which of these elements stay.
template <int N>
OPFORGE_HOST_DEVICE void keep(uint64_t seed, int64_t first, uint32_t threshold, bool (&kept)[N]) {
  uint32_t half[N];
  draw_halves(seed, first, half);
  for (int i = 0; i < N; ++i) kept[i] = half[i] >= threshold && threshold != kDropAll;
}

// The same as bits.
template <int N>
OPFORGE_HOST_DEVICE uint32_t kept_bits(uint64_t seed, int64_t first, uint32_t threshold) {
  uint32_t half[N], bits = 0;
  draw_halves(seed, first, half);
#if defined(__CUDACC__)
#pragma unroll
#endif
  for (int i = 0; i < N; ++i) bits |= uint32_t(half[i] >= threshold) << i;
  return threshold != kDropAll ? bits : 0;
}

}  // namespace opforge
