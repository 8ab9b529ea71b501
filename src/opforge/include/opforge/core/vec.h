// SPDX-License-Identifier: Apache-2.0
// 16-byte vectors of elements. Includes no torch header.
#pragma once

#include <cuda_runtime.h>
#include <opforge/core/types.h>

#include <cassert>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace opforge {

template <class T>
constexpr int kVec = 16 / sizeof(T);

// A number of elements per access, as a type.
template <int N>
using Width = std::integral_constant<int, N>;

template <class T, int N>
struct alignas(sizeof(T) * N) Vec {
  T value[N];
};

template <int N, class T>
__device__ __forceinline__ Vec<T, N> load(const T* address) {
  assert(reinterpret_cast<uintptr_t>(address) % sizeof(Vec<T, N>) == 0);
  return *reinterpret_cast<const Vec<T, N>*>(address);
}

template <int N, class T>
__device__ __forceinline__ void store(T* address, const Vec<T, N>& v) {
  assert(reinterpret_cast<uintptr_t>(address) % sizeof(Vec<T, N>) == 0);
  *reinterpret_cast<Vec<T, N>*>(address) = v;
}

template <int N, class A>
__device__ __forceinline__ void fill(A (&v)[N], A value) {
#pragma unroll
  for (int e = 0; e < N; ++e) v[e] = value;
}

// A vector in the layout of memory, to be held for a while: the compiler would give each 16-bit
// element of a Vec a register of its own.
template <class T, int N>
struct alignas(sizeof(T) * N) Packed {
  using Word = std::conditional_t<sizeof(T) * N % 4 == 0, uint32_t, uint16_t>;
  Word word[sizeof(T) * N / sizeof(Word)];

  Packed() = default;
  __device__ __forceinline__ Packed(const Vec<T, N>& v) { memcpy(word, &v, sizeof v); }

  // Hides from the compiler that this was unpacked before. Otherwise it would keep the floats of
  // that time in registers, in addition to the packed words.
  __device__ __forceinline__ Vec<T, N> unpacked() const {
    Packed copy = *this;
#if defined(__CUDA_ARCH__)
    if constexpr (sizeof(Word) == 4) {
#pragma unroll
      for (Word& one : copy.word) asm volatile("" : "+r"(one));
    }
#endif
    Vec<T, N> v;
    memcpy(&v, copy.word, sizeof v);
    return v;
  }
};

#if defined(__CUDACC__)
// Two 16-bit elements, as the GPU computes with them: a word of a Packed.
template <class T>
using Pair = std::conditional_t<std::is_same_v<T, half>, __half2, __nv_bfloat162>;
#endif

// All elements in the type they are computed in, and back.
template <class T, int N, class A>
__device__ __forceinline__ void widen(const Packed<T, N>& packed, A (&out)[N]) {
#if defined(__CUDA_ARCH__)
  if constexpr (std::is_same_v<T, bfloat16> && N % 2 == 0) {
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {  // an instruction each; the compiler takes two for the second
      uint32_t word = packed.word[i];
      asm volatile("" : "+r"(word));
      out[2 * i] = __uint_as_float(word << 16);
      out[2 * i + 1] = __uint_as_float(word & 0xffff0000u);
    }
    return;
  }
#endif
  const Vec<T, N> v = packed.unpacked();
#pragma unroll
  for (int e = 0; e < N; ++e) out[e] = widen(v.value[e]);
}

template <class T, int N, class A>
__device__ __forceinline__ Packed<T, N> narrow(const A (&from)[N]) {
  Vec<T, N> v;
#pragma unroll
  for (int e = 0; e < N; ++e) v.value[e] = narrow<T>(from[e]);
  return v;
}

template <int N, class T>
__device__ __forceinline__ Packed<T, N> load_packed(const T* address) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(Packed<T, N>) == 16) {  // a struct of words would be loaded word by word
    Packed<T, N> v;
    const uint4 all = *reinterpret_cast<const uint4*>(address);
    v.word[0] = all.x, v.word[1] = all.y, v.word[2] = all.z, v.word[3] = all.w;
    return v;
  }
#endif
  return load<N>(address);
}

// To global memory.
template <int N, class T>
__device__ __forceinline__ void store(T* address, const Packed<T, N>& v) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(Packed<T, N>) == 16) {
    assert(reinterpret_cast<uintptr_t>(address) % 16 == 0);
    // Assigned as a struct, the words are stored one by one.
    asm volatile(
        "st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(address)),
        "r"(v.word[0]), "r"(v.word[1]), "r"(v.word[2]), "r"(v.word[3])
        : "memory");
    return;
  }
#endif
#if defined(OPFORGE_SIM)
  if constexpr (sizeof(Packed<T, N>) == 16) sim::expect_global(address);
#endif
  store<N>(address, v.unpacked());
}

// Only if wanted: without a branch, which would hold up what comes after it.
template <int N, class T>
__device__ __forceinline__ void store_if(bool wanted, T* address, const Packed<T, N>& v) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(Packed<T, N>) == 16) {
    assert(!wanted || reinterpret_cast<uintptr_t>(address) % 16 == 0);
    asm volatile(
        "{ .reg .pred wanted; setp.ne.u32 wanted, %5, 0; "
        "@wanted st.global.v4.b32 [%0], {%1, %2, %3, %4}; }" ::"l"(
            __cvta_generic_to_global(address)),
        "r"(v.word[0]), "r"(v.word[1]), "r"(v.word[2]), "r"(v.word[3]), "r"(uint32_t(wanted))
        : "memory");
    return;
  }
#endif
  if (wanted) store<N>(address, v);
}

// How many elements `address` is past a boundary of so many bytes.
template <class T>
OPFORGE_HOST_DEVICE int misalignment(const T* address, int bytes = 16) {
  return int(reinterpret_cast<uintptr_t>(address) % bytes / sizeof(T));
}

}  // namespace opforge
