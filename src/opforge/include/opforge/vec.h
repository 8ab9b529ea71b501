// SPDX-License-Identifier: Apache-2.0
// 16-byte vectors of elements. Includes no torch header.
#pragma once

#include <opforge/types.h>

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

// Makes the compiler take a struct as new, in its own words: what it has derived from it before
// (16-bit elements as floats, say) it would else keep in as many registers again.
template <class Struct>
__device__ __forceinline__ void renew([[maybe_unused]] Struct& value) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(Struct) % 4 == 0) {
    uint32_t words[sizeof(Struct) / 4];
    memcpy(words, &value, sizeof value);
#pragma unroll
    for (uint32_t& word : words) asm volatile("" : "+r"(word));
    memcpy(&value, words, sizeof value);
  }
#endif
}

// How many elements `address` lies past a boundary of so many bytes.
template <class T>
OPFORGE_HOST_DEVICE int misalignment(const T* address, int bytes = 16) {
  return int(reinterpret_cast<uintptr_t>(address) % bytes / sizeof(T));
}

}  // namespace opforge
