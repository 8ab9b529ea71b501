// SPDX-License-Identifier: Apache-2.0
// What the prologue and the epilogue of a norm are made of: a relu, a dropout or both, and their
// gradients. Includes no torch header.
#pragma once

#include <opforge/core/rng.h>
#include <opforge/core/vec.h>

namespace opforge {

// max(v, 0) of every element; keeps NaN and -0.0. Of 16-bit ones two at a time.
template <class T, int N>
__device__ __forceinline__ Packed<T, N> relu_of(Packed<T, N> packed) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(T) == 2 && N % 2 == 0) {
#pragma unroll
    for (uint32_t& word : packed.word) {
      Pair<T> two;
      memcpy(&two, &word, sizeof two);
      word &= ~__hlt2_mask(two, Pair<T>{});
    }
    return packed;
  }
#endif
  compute_t<T> v[N];
  widen(packed, v);
#pragma unroll
  for (int e = 0; e < N; ++e) v[e] = v[e] < 0 ? compute_t<T>(0) : v[e];
  return narrow<T>(v);
}

// A gradient, but 0 where the input of a relu was at most 0.
template <class T, int N>
__device__ __forceinline__ Packed<T, N> relu_gradient(Packed<T, N> grad, const Packed<T, N>& in) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(T) == 2 && N % 2 == 0) {
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      Pair<T> two;
      memcpy(&two, &in.word[i], sizeof two);
      grad.word[i] &= ~__hle2_mask(two, Pair<T>{});
    }
    return grad;
  }
#endif
  compute_t<T> v[N], g[N];
  widen(in, v);
  widen(grad, g);
#pragma unroll
  for (int e = 0; e < N; ++e) g[e] = v[e] <= 0 ? compute_t<T>(0) : g[e];
  return narrow<T>(g);
}

// The relu comes first. The mask follows from the seed, which is on the device, and the element.
template <class A>
struct ReluDropout {
  bool relu = false, dropout = false;
  const int64_t* seed = nullptr;
  uint32_t threshold = 0;
  A factor = 1;  // of what is kept

  __device__ __forceinline__ uint64_t key() const { return dropout ? uint64_t(*seed) : 0; }
  // Bit e: element first + e stays. Whole: `first` is a multiple of N, as the compiler then sees.
  template <int N, bool Whole = false>
  __device__ __forceinline__ uint32_t kept(uint64_t key, int64_t first) const {
    return kept_bits<N>(key, Whole ? first & -int64_t(N) : first, threshold);
  }
  template <int N>
  __device__ __forceinline__ void drop(uint32_t kept, A (&v)[N]) const {
#pragma unroll
    for (int e = 0; e < N; ++e) v[e] = (kept >> e & 1) != 0 ? v[e] * factor : A(0);
  }
};

}  // namespace opforge
