// SPDX-License-Identifier: Apache-2.0
// Asynchronous copies of 16 bytes from global to shared memory, each asked for by a thread
// (cp.async, compute capability 8.0). They need neither registers nor barriers. Includes no torch
// header.
//
//   piece_copy(&s.tile[i], x + i);  // each thread its own
//   piece_commit();
//   piece_wait<0>();    // this thread's pieces are there,
//   __syncthreads();    // and those of the others, who have waited, too
#pragma once

#include <cuda_runtime.h>
#include <opforge/core/async.h>

#include <cassert>
#include <cstdint>
#include <cstring>

namespace opforge {

constexpr int kPieceBytes = 16;

// The first `bytes` of the piece come from global memory, the rest are zeros. With 0 bytes, nothing
// is read. Both addresses are multiples of 16.
__device__ __forceinline__ void piece_copy(void* to_shared, const void* from_global,
                                           int bytes = kPieceBytes) {
#if defined(OPFORGE_SIM)
  sim::piece_copy(to_shared, from_global, uint32_t(bytes));
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(
                   detail::shared_address(to_shared)),
               "l"(__cvta_generic_to_global(from_global)), "r"(bytes)
               : "memory");
#else
  assert(reinterpret_cast<uintptr_t>(to_shared) % kPieceBytes == 0);
  int4 piece = {};
  if (bytes == kPieceBytes) {
    piece = *static_cast<const int4*>(from_global);
  } else {
    memcpy(&piece, from_global, bytes);
  }
  *static_cast<int4*>(to_shared) = piece;
#endif
}

// Makes a group of this thread's pieces since the last one.
__device__ __forceinline__ void piece_commit() {
#if defined(OPFORGE_SIM)
  sim::piece_commit();
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Until all groups of this thread but the N latest are in shared memory.
template <int N>
__device__ __forceinline__ void piece_wait() {
#if defined(OPFORGE_SIM)
  sim::piece_wait(N);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}

}  // namespace opforge
