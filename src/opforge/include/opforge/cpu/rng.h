// SPDX-License-Identifier: Apache-2.0
// The random numbers of rng.h, many at a time, for CPU kernels. Includes no torch header.
#pragma once

#include <opforge/core/rng.h>
#include <opforge/cpu/vec.h>

#include <cstdint>

namespace opforge {

namespace detail {

using Words = VectorOf<uint32_t>::type;
using Wide = VectorOf<uint64_t>::type;

// The low halves of the lanes multiplied, whatever the high halves hold.
OPFORGE_INLINE Wide multiply(Wide a, uint32_t b) {
#if defined(__AVX2__)  // gcc makes three multiplications of the portable form
  return Wide(_mm256_mul_epu32(__m256i(a), __m256i(uint64_t(b) - Wide{})));
#else
  return (a & 0xffffffffu) * uint64_t(b);
#endif
}

// The 16 words of counters c to c + 3. A lane of 64 bits is a counter; only its low half counts, so
// that products need not be taken apart. Lanes hold counters 0, 2, 1, 3: pairs of words then fall
// into place.
OPFORGE_INLINE void philox16(uint64_t key, uint64_t c, Words& first, Words& second) {
  const Wide low = Wide{0, 2, 1, 3} + c;
  Wide c0 = low, c1 = low >> 32, c2 = {}, c3 = {};
  uint32_t k0 = uint32_t(key), k1 = uint32_t(key >> 32);
#pragma GCC unroll 10
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const Wide a = multiply(c0, kPhiloxFactor0), b = multiply(c2, kPhiloxFactor1);
    c0 = (b >> 32) ^ c1 ^ uint64_t(k0);
    c1 = b;
    c2 = (a >> 32) ^ c3 ^ uint64_t(k1);
    c3 = a;
    k0 += kPhiloxKeyStep0;
    k1 += kPhiloxKeyStep1;
  }
  const Wide a = (c0 & 0xffffffffu) | c1 << 32, b = (c2 & 0xffffffffu) | c3 << 32;
  first = Words(__builtin_shufflevector(a, b, 0, 4, 2, 6));
  second = Words(__builtin_shufflevector(a, b, 1, 5, 3, 7));
}

}  // namespace detail

// The 16 bits each of up to Most neighbouring elements, wherever the first one is.
template <int64_t Most>
class RandomHalves {
 public:
  // Good until the next call; eight may be read wherever one may.
  const uint16_t* draw(uint64_t seed, uint64_t first, int64_t n) {
    const int64_t skip = int64_t(first % 8);
    for (int64_t i = 0; i < skip + n; i += 32) {
      detail::Words a, b;
      detail::philox16(seed, first / 8 + uint64_t(i) / 8, a, b);
      // In memory the low half of a word comes first.
      std::memcpy(halves_ + i, &a, sizeof a);
      std::memcpy(halves_ + i + 16, &b, sizeof b);
    }
    return halves_ + skip;
  }

 private:
  alignas(32) uint16_t halves_[Most + 7 + 32];
};

// v where the element stays, 0 where it is dropped. Numbers of 16 bits compare alike with a sign,
// which AVX2 does in one instruction.
OPFORGE_INLINE vec<float> where_kept(const uint16_t* halves, uint32_t threshold, vec<float> v) {
  if (threshold == kDropAll) return vec<float>{};
  const auto h = VectorOf<int32_t>::type(load_halves(halves));
  return h >= int32_t(threshold >> 16) ? v : vec<float>{};
}

OPFORGE_INLINE vec<double> where_kept(const uint16_t* halves, uint32_t threshold, vec<double> v) {
  if (threshold == kDropAll) return vec<double>{};
  const VectorOf<int64_t>::type h = {halves[0], halves[1], halves[2], halves[3]};
  return h >= int64_t(threshold >> 16) ? v : vec<double>{};
}

}  // namespace opforge
