// SPDX-License-Identifier: Apache-2.0
// Asynchronous copies between global and shared memory, and the barriers that signal their
// completion. Before compute capability 9.0, the thread that asks for a copy copies itself:
// correct, but slow. Includes no torch header.
//
//   if (threadIdx.x == 0) init(s.full, 1), publish_barriers();
//   __syncthreads();
//   if (threadIdx.x == 0) arrive_expecting(s.full, bytes), bulk_copy(s.data, x, bytes, s.full);
//   wait(s.full, 0);  // every thread that reads s.data
//
// A barrier alternates between phases 0 and 1. A phase ends when as many threads have arrived as
// init() was told, and when all bytes that they announced have come. A barrier is used in the block
// that has it in its shared memory.
//
// Before a stage is filled again, its readers must have passed a __syncthreads() or arrived at a
// barrier that the thread which refills it has waited for. No fence_for_copies() is needed after
// reads, because they are done by then, only after writes. (CUTLASS's pipelines release their
// stages in this way, too.)
#pragma once

#include <cuda_runtime.h>

#include <cassert>
#include <cstdint>
#include <cstring>

namespace opforge {

// An mbarrier, in shared memory.
struct alignas(8) Barrier {
  unsigned long long state;
};

#if !defined(OPFORGE_SIM)
namespace detail {

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// How a barrier is kept before 9.0, whose own count no bytes.
struct BarrierFields {
  uint64_t missing : 20;
  uint64_t arrivals : 20;
  uint64_t phase : 1;
  int64_t bytes : 23;  // announced less those that came
};
static_assert(sizeof(BarrierFields) == sizeof(Barrier));

__device__ __forceinline__ BarrierFields fields_of(unsigned long long state) {
  BarrierFields fields;
  memcpy(&fields, &state, sizeof fields);
  return fields;
}

__device__ __forceinline__ unsigned long long state_of(const BarrierFields& fields) {
  unsigned long long state;
  memcpy(&state, &fields, sizeof state);
  return state;
}

__device__ __forceinline__ void advance(Barrier& barrier, int arrivals, int64_t bytes) {
  __threadfence_block();
  unsigned long long before = *const_cast<volatile unsigned long long*>(&barrier.state), expected;
  do {
    expected = before;
    BarrierFields next = fields_of(expected);
    next.missing -= arrivals;
    next.bytes += bytes;
    if (next.missing == 0 && next.bytes == 0) {
      next.missing = next.arrivals;
      next.phase ^= 1;
    }
    before = atomicCAS(&barrier.state, expected, state_of(next));
  } while (before != expected);
}

__device__ __forceinline__ void copy_now(void* to, const void* from, uint32_t bytes) {
  for (uint32_t i = 0; i < bytes / 16; ++i) {
    static_cast<int4*>(to)[i] = static_cast<const int4*>(from)[i];
  }
}

}  // namespace detail
#endif

// One thread does this, for barriers that nobody uses yet.
__device__ __forceinline__ void init(Barrier& barrier, int arrivals) {
#if defined(OPFORGE_SIM)
  sim::barrier_init(&barrier, arrivals);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(detail::shared_address(&barrier)),
               "r"(arrivals)
               : "memory");
#else
  const uint64_t count = uint64_t(arrivals);
  barrier.state = detail::state_of({count, count, 0, 0});
#endif
}

// The same thread, after it has made all of them; a __syncthreads() or cluster_sync() follows.
__device__ __forceinline__ void publish_barriers() {
#if defined(OPFORGE_SIM)
  sim::publish_barriers();
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster; fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// What this thread did before is visible to those who wait for the phase.
__device__ __forceinline__ void arrive(Barrier& barrier) {
#if defined(OPFORGE_SIM)
  sim::barrier_arrive(&barrier, 0);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(detail::shared_address(&barrier))
      : "memory");
#else
  detail::advance(barrier, 1, 0);
#endif
}

// Counts at this barrier in block `rank` of the cluster, which must not have exited. It says that
// this thread is done with what it read, so that it may be overwritten. It tells nothing of what
// this thread wrote: that would take a fence of the whole GPU, about a microsecond.
__device__ __forceinline__ void arrive_at(Barrier& barrier, int rank) {
#if defined(OPFORGE_SIM)
  sim::barrier_arrive_at(&barrier, rank);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; "
      "mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [there]; }" ::"r"(
          detail::shared_address(&barrier)),
      "r"(rank)
      : "memory");
#else
  detail::advance(barrier, 1, 0);
#endif
}

// An arrival that announces so many bytes of bulk_copy() and send() to this barrier for this phase.
__device__ __forceinline__ void arrive_expecting(Barrier& barrier, uint32_t bytes) {
#if defined(OPFORGE_SIM)
  sim::barrier_arrive(&barrier, bytes);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(
                   detail::shared_address(&barrier)),
               "r"(bytes)
               : "memory");
#else
  detail::advance(barrier, 1, int64_t(bytes));
#endif
}

// Returns once a phase of this parity, 0 or 1, is over: the current one if it has that parity, else
// the one before it, at once. Its copies have landed, and what its arrivals told is visible.
__device__ __forceinline__ void wait(Barrier& barrier, uint32_t phase) {
#if defined(OPFORGE_SIM)
  sim::barrier_wait(&barrier, phase);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  uint32_t over;
  do {
    asm volatile(
        "{ .reg .pred over; "
        "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 over, [%1], %2; "
        "selp.u32 %0, 1, 0, over; }"
        : "=r"(over)
        : "r"(detail::shared_address(&barrier)), "r"(phase)
        : "memory");
  } while (over == 0);
#else
  const volatile unsigned long long* state = &barrier.state;
  while (detail::fields_of(*state).phase == (phase & 1)) {
  }
  __threadfence_block();
#endif
}

// One thread asks for one copy. It lands some time later, when its bytes count for the barrier's
// phase. Addresses and size are multiples of 16 bytes; an earlier kernel wrote what is copied.
__device__ __forceinline__ void bulk_copy(void* to_shared, const void* from_global, uint32_t bytes,
                                          Barrier& barrier) {
#if defined(OPFORGE_SIM)
  sim::bulk_copy(to_shared, from_global, bytes, &barrier);
#else
  assert(reinterpret_cast<uintptr_t>(to_shared) % 16 == 0);
  assert(reinterpret_cast<uintptr_t>(from_global) % 16 == 0);
  assert(bytes % 16 == 0);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(detail::shared_address(to_shared)),
      "l"(__cvta_generic_to_global(from_global)), "r"(bytes), "r"(detail::shared_address(&barrier))
      : "memory");
#else
  detail::copy_now(to_shared, from_global, bytes);
  detail::advance(barrier, 0, -int64_t(bytes));
#endif
#endif
}

// Puts a value into the same variable of block `rank` of the cluster, some time later, when its
// bytes count for the same barrier there. Who waits for the phase sees it, without a barrier of the
// whole cluster: that one flushes caches.
template <class Value>
__device__ __forceinline__ void send(const Value& value, Value& to, Barrier& barrier, int rank) {
  static_assert(sizeof(Value) % 4 == 0 && alignof(Value) >= 4);
#if defined(OPFORGE_SIM)
  sim::send(&to, &value, sizeof value, &barrier, rank);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  uint32_t words[sizeof(Value) / 4], there, told;
  memcpy(words, &value, sizeof value);
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(there)
      : "r"(detail::shared_address(&to)), "r"(rank));
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(told)
      : "r"(detail::shared_address(&barrier)), "r"(rank));
#pragma unroll
  for (unsigned i = 0; i < sizeof(Value) / 4; ++i) {
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(
            there + 4 * i),
        "r"(words[i]), "r"(told)
        : "memory");
  }
#else
  to = value;
  detail::advance(barrier, 0, -int64_t(sizeof value));
#endif
}

// The threads that wrote what a bulk_store() is to read, or where a bulk_copy() is to land, call
// this between their writes and the barrier after which one of them asks for it.
__device__ __forceinline__ void fence_for_copies() {
#if defined(OPFORGE_SIM)
  sim::fence_for_copies();
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// The other way. The shared memory may be written again, and the block may end, after
// bulk_commit() and bulk_wait_read() of the same thread; others see the result in later kernels.
__device__ __forceinline__ void bulk_store(void* to_global, const void* from_shared,
                                           uint32_t bytes) {
#if defined(OPFORGE_SIM)
  sim::bulk_store(to_global, from_shared, bytes);
#else
  assert(reinterpret_cast<uintptr_t>(to_global) % 16 == 0);
  assert(reinterpret_cast<uintptr_t>(from_shared) % 16 == 0);
  assert(bytes % 16 == 0);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(
                   __cvta_generic_to_global(to_global)),
               "r"(detail::shared_address(from_shared)), "r"(bytes)
               : "memory");
#else
  detail::copy_now(to_global, from_shared, bytes);
#endif
#endif
}

// Makes a group of this thread's bulk_store()s since the last one.
__device__ __forceinline__ void bulk_commit() {
#if defined(OPFORGE_SIM)
  sim::bulk_commit();
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#endif
}

// Until all groups of this thread but the N latest have read their shared memory.
template <int N>
__device__ __forceinline__ void bulk_wait_read() {
#if defined(OPFORGE_SIM)
  sim::bulk_wait_read(N);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
#endif
}

}  // namespace opforge
