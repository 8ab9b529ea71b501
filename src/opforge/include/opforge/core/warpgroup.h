// SPDX-License-Identifier: Apache-2.0
// Warp groups, 4 consecutive warps, that do different work in one block: barriers among some of the
// block's threads, and registers moved from one warp group to another. Includes no torch header.
#pragma once

#include <cuda_runtime.h>

namespace opforge {

constexpr int kWarpGroup = 128;  // threads

// __syncthreads() of `count` threads, a multiple of 32, that all call it with the same id: 1 to 15.
__device__ __forceinline__ void sync_some(int id, int count) {
#if defined(OPFORGE_SIM)
  sim::named_barrier(id, count, true);
#elif defined(__CUDA_ARCH__)
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(count) : "memory");
#endif
}

// Counts as one of these threads without waiting for the others.
__device__ __forceinline__ void arrive_some(int id, int count) {
#if defined(OPFORGE_SIM)
  sim::named_barrier(id, count, false);
#elif defined(__CUDA_ARCH__)
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(count) : "memory");
#endif
}

// From here on, each thread of this warp group may have so many registers: a multiple of 8. The
// kernel has __launch_bounds__(threads, 1), and one branch per role in which each warp group asks
// once. What some take, others have given.
template <int N>
__device__ __forceinline__ void take_registers() {
#if !defined(OPFORGE_SIM) && defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
#endif
}
template <int N>
__device__ __forceinline__ void give_registers() {
#if !defined(OPFORGE_SIM) && defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
#endif
}

}  // namespace opforge
