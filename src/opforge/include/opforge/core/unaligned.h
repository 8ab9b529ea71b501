// SPDX-License-Identifier: Apache-2.0
// Vectors from addresses that need not be aligned. Includes no torch header.
#pragma once

#include <opforge/core/vec.h>

namespace opforge {

// N elements, 16 bytes, as the two aligned vectors that contain them. Where neighbouring threads
// take neighbouring elements, the second of one is the first of the next: memory is read once, the
// rest comes from the cache.
template <class T, int N>
struct Unaligned {
  Packed<T, N> low, high;
  int past;  // bytes of `low` before the first element

  // Whether both lie in a row of at least 2 N columns, if the elements begin at column `col`.
  template <class Col>
  static __device__ __forceinline__ bool fits(const T* from, Col col, Col cols) {
    using Unsigned = std::make_unsigned_t<Col>;  // so that none is before the first
    return Unsigned(col - misalignment(from)) <= Unsigned(cols - 2 * N);
  }

  Unaligned() = default;
  // Both are loaded, even where `low` has all elements: a branch would delay the second load.
  __device__ __forceinline__ explicit Unaligned(const T* from) {
    past = int(reinterpret_cast<uintptr_t>(from) % 16);
    const char* const boundary = reinterpret_cast<const char*>(from) - past;
    low = load_packed<N>(reinterpret_cast<const T*>(boundary));
    high = load_packed<N>(reinterpret_cast<const T*>(boundary + 16));
  }

  __device__ __forceinline__ Packed<T, N> together() const {
    Packed<T, N> result;
#if defined(__CUDA_ARCH__)
    // By eight bytes, by four, by two, each or not: registers cannot be indexed.
    uint32_t word[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) word[i] = i < 4 ? low.word[i] : high.word[i - 4];
#pragma unroll
    for (int i = 0; i < 6; ++i) word[i] = past & 8 ? word[i + 2] : word[i];
    if constexpr (sizeof(T) <= 4) {
#pragma unroll
      for (int i = 0; i < 5; ++i) word[i] = past & 4 ? word[i + 1] : word[i];
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      result.word[i] =
          sizeof(T) == 2 ? __funnelshift_r(word[i], word[i + 1], past % 4 * 8) : word[i];
    }
#else
    const Packed<T, N> both[2] = {low, high};
    memcpy(result.word, reinterpret_cast<const char*>(both) + past, sizeof result);
#endif
    return result;
  }
};

}  // namespace opforge
