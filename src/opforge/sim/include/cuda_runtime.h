// SPDX-License-Identifier: Apache-2.0
// The simulator's stand-in for CUDA's header of this name: the part of the language and of the
// runtime that opforge's kernels use, in plain C++20.
#pragma once

#include <assert.h>
#include <opforge_sim/atomic.h>
#include <opforge_sim/host_api.h>
#include <opforge_sim/math.h>
#include <opforge_sim/runtime.h>
#include <opforge_sim/tiles.h>
#include <opforge_sim/vector_types.h>
#include <opforge_sim/warp.h>

#include <cstdio>
#include <memory>  // uses the name __noinline__, which is a macro from here on

#define __global__
#define __device__
#define __host__
#define __constant__
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
// In front of the kernel a byte that does nothing for each thread of the bound: the simulator
// counts them. (clang's attribute takes no template's arguments.)
#if defined(__clang__)
#define __launch_bounds__(...)
#else
#define __launch_bounds__(...)                                                    \
  __attribute__((patchable_function_entry(opforge::sim::whole_warps(__VA_ARGS__), \
                                          opforge::sim::whole_warps(__VA_ARGS__))))
#endif
#define __align__(n) alignas(n)
#define __restrict__ __restrict
#define __ldg(address) (*(address))
// Blocks of one host thread would share it, and nothing would be found out about it.
#define __shared__                                                                      \
  _Pragma(                                                                              \
      "GCC error \"opforge simulator: a bare __shared__ is not simulated; put it into " \
      "a struct and get that from opforge::shared<Struct>()\"")

constexpr int warpSize = 32;

OPFORGE_SIM_INLINE void __syncthreads(
    std::source_location where = std::source_location::current()) {
  opforge::sim::block_barrier(opforge::sim::Vote::none, 0, where);
}
OPFORGE_SIM_INLINE int __syncthreads_and(
    int p, std::source_location where = std::source_location::current()) {
  return opforge::sim::block_barrier(opforge::sim::Vote::all, p, where);
}
OPFORGE_SIM_INLINE int __syncthreads_or(
    int p, std::source_location where = std::source_location::current()) {
  return opforge::sim::block_barrier(opforge::sim::Vote::any, p, where);
}
OPFORGE_SIM_INLINE int __syncthreads_count(
    int p, std::source_location where = std::source_location::current()) {
  return opforge::sim::block_barrier(opforge::sim::Vote::count, p, where);
}

OPFORGE_SIM_INLINE void __threadfence_block() { opforge::sim::fence(opforge::sim::Scope::block); }
OPFORGE_SIM_INLINE void __threadfence() { opforge::sim::fence(opforge::sim::Scope::device); }
OPFORGE_SIM_INLINE void __threadfence_system() { opforge::sim::fence(opforge::sim::Scope::device); }

[[noreturn]] OPFORGE_SIM_INLINE void __trap(
    std::source_location where = std::source_location::current()) {
  opforge::sim::trap(where);
}
