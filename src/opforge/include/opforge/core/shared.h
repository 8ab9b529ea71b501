// SPDX-License-Identifier: Apache-2.0
// Shared memory is a struct got through here, never a bare __shared__ variable in an op: what runs
// kernels without a GPU has to find it through the block being executed. Includes no torch header.
#pragma once

#include <cuda_runtime.h>

namespace opforge {

template <class Struct>
__device__ __forceinline__ Struct& shared() {
#if defined(OPFORGE_SIM)
  static_assert(sizeof(Struct) <= 49152, "a block has 48 KB of static shared memory");
  static const char key = 0;  // its address tells this Struct from others
  return *static_cast<Struct*>(sim::shared_memory(&key, sizeof(Struct), alignof(Struct)));
#else
  __shared__ alignas(alignof(Struct)) unsigned char bytes[sizeof(Struct)];
  return *reinterpret_cast<Struct*>(bytes);
#endif
}

// The Config::shared_bytes of the launch, at a multiple of 128 or of 1024 bytes.
template <int Alignment = 128>
__device__ __forceinline__ unsigned char* dynamic_shared() {
  static_assert(Alignment == 128 || Alignment == 1024);
#if defined(OPFORGE_SIM)
  return static_cast<unsigned char*>(sim::dynamic_shared(Alignment));
#else
  if constexpr (Alignment == 128) {
    extern __shared__ __align__(128) unsigned char opforge_dynamic_shared[];
    return opforge_dynamic_shared;
  } else {
    extern __shared__ __align__(1024) unsigned char opforge_aligned_dynamic_shared[];
    return opforge_aligned_dynamic_shared;
  }
#endif
}

}  // namespace opforge
