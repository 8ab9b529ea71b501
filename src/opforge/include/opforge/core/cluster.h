// SPDX-License-Identifier: Apache-2.0
// Blocks of a cluster (Config::cluster): who is who, barriers, each other's shared memory. A launch
// without one, and any code for GPUs before 9.0, has clusters of one block. Includes no torch
// header.
#pragma once

#include <cuda_runtime.h>

namespace opforge {

// Of this block in its cluster: blockIdx.x % cluster_size().
__device__ __forceinline__ int cluster_rank() {
#if defined(OPFORGE_SIM)
  return sim::cluster_rank();
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  int rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
#else
  return 0;
#endif
}

__device__ __forceinline__ int cluster_size() {
#if defined(OPFORGE_SIM)
  return sim::cluster_size();
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  int size;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  return size;
#else
  return 1;
#endif
}

// The two halves of a barrier for all threads of the cluster: what each did before it arrived is
// visible to all once they have waited. Every thread calls both alternately, and all lanes of a
// warp together; between them it can work on what is its own.
__device__ __forceinline__ void cluster_arrive() {
#if defined(OPFORGE_SIM)
  sim::cluster_arrive();
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}

// The same arrival without the fence of all memory, which takes time: writes before it are not made
// visible to others. It is enough to tell that this block has started and published its barriers
// (async.h).
__device__ __forceinline__ void cluster_arrive_relaxed() {
#if defined(OPFORGE_SIM)
  sim::cluster_arrive_relaxed();
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}

__device__ __forceinline__ void cluster_wait() {
#if defined(OPFORGE_SIM)
  sim::cluster_wait();
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
  __syncthreads();
#endif
}

__device__ __forceinline__ void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}

// The same shared variable in block `rank` of the cluster, to read and write as usual. That block
// must have started (a cluster_sync() before the first use) and must not have exited (one after
// the last).
template <class T>
__device__ __forceinline__ T* in_block(T* shared, int rank) {
#if defined(OPFORGE_SIM)
  return static_cast<T*>(sim::in_block(const_cast<void*>(static_cast<const void*>(shared)), rank));
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  T* there;
  asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(shared), "r"(rank));
  return there;
#else
  return shared;
#endif
}

}  // namespace opforge
