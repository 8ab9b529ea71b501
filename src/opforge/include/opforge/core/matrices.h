// SPDX-License-Identifier: Apache-2.0
// Matrices of 8 rows of 16 bytes between shared memory and the registers of a warp, four at a time
// (ldmatrix, stmatrix), in the layout that tensor cores have: lane 4 g + t holds bytes 4 t to 4 t +
// 3 of row g. Includes no torch header.
#pragma once

#include <cuda_runtime.h>
#include <opforge/core/async.h>
#include <opforge/core/types.h>

#include <cassert>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace opforge {

// Lane 8 i + j gives the address of row j of matrix i. Every lane gets its 4 bytes of each matrix.
// With `transposed`, elements are of 16 bits, and a lane gets those of rows 2 t and 2 t + 1 in
// column g.
template <bool transposed = false>
__device__ __forceinline__ void load_matrices(uint32_t (&to)[4], const void* row) {
#if defined(OPFORGE_SIM)
  assert(reinterpret_cast<uintptr_t>(row) % 16 == 0);
  const int lane = int(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
  for (int i = 0; i < 4; ++i) {
    if constexpr (transposed) {
      uint32_t pair = 0;
      for (int j = 0; j < 2; ++j) {
        const void* const from = __shfl_sync(0xffffffffu, row, 8 * i + 2 * t + j);
        pair |= uint32_t(static_cast<const uint16_t*>(from)[g]) << (16 * j);
      }
      to[i] = pair;
    } else {
      to[i] = static_cast<const uint32_t*>(__shfl_sync(0xffffffffu, row, 8 * i + g))[t];
    }
  }
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  const uint32_t address = detail::shared_address(row);
  if constexpr (transposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
  }
#endif
}

// The other way, for compute capability 9.0.
__device__ __forceinline__ void store_matrices(void* row, const uint32_t (&from)[4]) {
#if defined(OPFORGE_SIM)
  assert(reinterpret_cast<uintptr_t>(row) % 16 == 0);
  const int lane = int(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
  for (int i = 0; i < 4; ++i) {
    static_cast<uint32_t*>(__shfl_sync(0xffffffffu, row, 8 * i + g))[t] = from[i];
  }
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                   detail::shared_address(row)),
               "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3])
               : "memory");
#endif
}

// Two values as 16-bit elements beside each other, and back.
template <class T>
__device__ __forceinline__ uint32_t pack_pair(float first, float second) {
  static_assert(sizeof(T) == 2);
#if defined(OPFORGE_SIM) || !defined(__CUDA_ARCH__)
  const T pair[2] = {narrow<T>(first), narrow<T>(second)};
  uint32_t bits;
  memcpy(&bits, pair, sizeof bits);
  return bits;
#else
  uint32_t bits;
  if constexpr (std::is_same_v<T, bfloat16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(second), "f"(first));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(second), "f"(first));
  }
  return bits;
#endif
}
template <class T>
__device__ __forceinline__ void unpack_pair(uint32_t bits, float& first, float& second) {
  static_assert(sizeof(T) == 2);
#if !defined(OPFORGE_SIM) && defined(__CUDA_ARCH__)
  if constexpr (std::is_same_v<T, bfloat16>) {
    first = __uint_as_float(bits << 16), second = __uint_as_float(bits & 0xffff0000u);
    return;
  }
#endif
  T pair[2];
  memcpy(pair, &bits, sizeof bits);
  first = widen(pair[0]), second = widen(pair[1]);
}

}  // namespace opforge
