// SPDX-License-Identifier: Apache-2.0
// Launching a kernel, what the device can take, and overrides for experiments.
// Ops launch through here and never with <<<>>>. Includes no torch header.
#pragma once

#include <cuda_runtime.h>
#include <opforge/core/layout.h>
#include <opforge/core/text.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace opforge {

inline void cuda_check(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return;
  cudaGetLastError();  // clear it: the error is reported here, once
  fail(what, ": ", cudaGetErrorName(code), " (", cudaGetErrorString(code), ")");
}

struct Config {
  dim3 grid;
  dim3 block;
  cudaStream_t stream;
  size_t shared_bytes = 0;
  // Start while the previous kernel of the stream drains; the kernel must call await_previous()
  // before it reads what that one wrote. Hides the launch of a small second kernel.
  bool overlap_previous = false;
  // So many blocks, neighbours along x, run at the same time and reach each other's shared memory
  // (cluster.h): at most 8, and grid.x a multiple of it. Only where can_cluster() says so.
  int cluster = 1;
};

// In the kernel launched with overlap_previous: all writes of the previous kernel are visible
// after.
__device__ __forceinline__ void await_previous() {
#if defined(OPFORGE_SIM)
  sim::await_previous();
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// In the kernel before it: from here on the next one may be started.
__device__ __forceinline__ void release_next() {
#if defined(OPFORGE_SIM)
  sim::release_next();
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Whether the kernel's machine code contains await_previous(). If the driver compiled it from PTX
// of an older architecture, it does not, whatever the GPU is.
template <class... Params>
inline bool can_overlap(void (*kernel)(Params...)) {
  cudaFuncAttributes facts = {};
  cuda_check(cudaFuncGetAttributes(&facts, kernel), "cudaFuncGetAttributes");
  return facts.ptxVersion >= 90;
}

// Whether it can be launched with a cluster; the copies of async.h are then done by the GPU's copy
// engine, too. Code of 9.0 runs on no older GPU.
template <class... Params>
inline bool can_cluster(void (*kernel)(Params...)) {
  return can_overlap(kernel);
}

// A kernel gets more than 48 KB of shared memory, static and dynamic together, once the driver has
// been told how much of it is dynamic.
template <class... Params>
inline cudaError_t allow_shared(void (*kernel)(Params...), size_t bytes) {
  if (bytes == 0) return cudaSuccess;
  static std::mutex lock;
  static std::map<std::pair<const void*, int>, size_t> allowed;  // telling takes microseconds
  int device = 0;
  cuda_check(cudaGetDevice(&device), "cudaGetDevice");
  const std::lock_guard hold(lock);
  size_t& most = allowed[{reinterpret_cast<const void*>(kernel), device}];
  if (bytes <= most) return cudaSuccess;
  const cudaError_t code =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(bytes));
  if (code == cudaSuccess) most = bytes;
  return code;
}

template <class... Params, class... Args>
inline void launch(void (*kernel)(Params...), const Config& config, Args&&... args) {
  cudaLaunchConfig_t raw = {};
  raw.gridDim = config.grid;
  raw.blockDim = config.block;
  raw.dynamicSmemBytes = config.shared_bytes;
  raw.stream = config.stream;
  cudaLaunchAttribute attributes[2] = {};
  raw.attrs = attributes;
  if (config.overlap_previous && can_overlap(kernel)) {
    cudaLaunchAttribute& overlap = attributes[raw.numAttrs++];
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
  }
  if (config.cluster != 1) {
    cudaLaunchAttribute& cluster = attributes[raw.numAttrs++];
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {unsigned(config.cluster), 1, 1};
  }
  cudaError_t code = allow_shared(kernel, config.shared_bytes);
  if (code == cudaSuccess) {
    code = cudaLaunchKernelEx(&raw, kernel, Params(std::forward<Args>(args))...);
  }
  if (code == cudaSuccess) return;
  std::string what = text_of({"launching a kernel with grid (", config.grid.x, ", ", config.grid.y,
                              ", ", config.grid.z, "), block ", config.block.x, ", ",
                              config.shared_bytes, " bytes of shared memory"});
  if (config.cluster != 1) what += text_of({", clusters of ", config.cluster, " blocks"});
  cudaFuncAttributes facts = {};
  const int64_t threads = int64_t(config.block.x) * config.block.y * config.block.z;
  if (cudaFuncGetAttributes(&facts, kernel) == cudaSuccess && threads > facts.maxThreadsPerBlock) {
    what += text_of({"; it takes ", facts.maxThreadsPerBlock,
                     " threads to a block at most, by its __launch_bounds__ or its registers"});
  }
  cuda_check(code, what.c_str());
}

namespace detail {

inline int device_attribute(cudaDeviceAttr attribute, std::atomic<int> (&known)[64]) {
  int device = 0;
  cuda_check(cudaGetDevice(&device), "cudaGetDevice");
#if !defined(OPFORGE_SIM)  // which may pretend to be another device with every call
  if (device < 64 && known[device] != 0) return known[device] - 1;
#endif
  int count = 0;
  cuda_check(cudaDeviceGetAttribute(&count, attribute, device), "cudaDeviceGetAttribute");
  if (device < 64) known[device] = count + 1;  // 0: not asked yet
  return count;
}

}  // namespace detail

// How the work is split may follow the shape, the alignment and these two numbers, never an
// occupancy query: the same tensor gives the same order of additions, hence the same bits.
inline int multiprocessors() {
  static std::atomic<int> known[64];  // per device; asking CUDA takes half a microsecond
  return detail::device_attribute(cudaDevAttrMultiProcessorCount, known);
}

// Bytes that a block may have, static and dynamic together.
inline int most_shared() {
  static std::atomic<int> known[64];
  return detail::device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, known);
}

// Set by opforge.launch_config() in Python; 0 leaves the default. Process-wide, for experiments:
// autograd calls backward kernels from threads of its own, so per-thread values would be missed.
struct Tuning {
  int block = 0;  // threads per block
  int rows = 0;   // rows per block
  int vec = 0;    // elements per access: 1, or the 16-byte vector
};
inline Tuning tuning;

}  // namespace opforge

// One per library, found by name from Python. Weak: an op may have several source files.
extern "C" __attribute__((visibility("default"), weak)) void opforge_set_tuning(int block, int rows,
                                                                                int vec) {
  opforge::tuning = {block, rows, vec};  // unreached: only opforge.launch_config sets it
}
