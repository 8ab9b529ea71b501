// SPDX-License-Identifier: Apache-2.0
// 16-byte vectors of elements. Includes no torch header.
#pragma once

#include <opforge/types.h>

#include <cassert>
#include <cstdint>

namespace opforge {

template <class T>
constexpr int kVec = 16 / sizeof(T);

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

// How many elements `address` lies past a boundary of so many bytes.
template <class T>
inline int misalignment(const T* address, int bytes = 16) {
  return int(reinterpret_cast<uintptr_t>(address) % bytes / sizeof(T));
}

}  // namespace opforge
