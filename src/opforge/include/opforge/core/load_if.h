// SPDX-License-Identifier: Apache-2.0
// Vectors of which some are not wanted, as at the end of a row. Includes no torch header.
#pragma once

#include <opforge/core/vec.h>

namespace opforge {

// From global memory, if wanted, else zeros: without a branch, which would hold up the loads after
// it.
template <int N, class T>
__device__ __forceinline__ Packed<T, N> load_if(bool wanted, const T* address) {
  Packed<T, N> v;
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof v == 16) {
    assert(!wanted || reinterpret_cast<uintptr_t>(address) % 16 == 0);
    asm volatile(
        "{ .reg .pred wanted; setp.ne.u32 wanted, %5, 0; "
        "mov.b32 %0, 0; mov.b32 %1, 0; mov.b32 %2, 0; mov.b32 %3, 0; "
        "@wanted ld.global.v4.b32 {%0, %1, %2, %3}, [%4]; }"
        : "=&r"(v.word[0]), "=&r"(v.word[1]), "=&r"(v.word[2]), "=&r"(v.word[3])
        : "l"(__cvta_generic_to_global(address)), "r"(uint32_t(wanted)));
    return v;
  }
#endif
#if defined(OPFORGE_SIM)
  if (wanted && sizeof v == 16) sim::expect_global(address);
#endif
  if (wanted) return load_packed<N>(address);
  memset(v.word, 0, sizeof v.word);
  return v;
}

}  // namespace opforge
