// SPDX-License-Identifier: Apache-2.0
// The host side of the CUDA runtime, as far as opforge::launch uses it.
#pragma once

#include <opforge_sim/runtime.h>

#include <tuple>
#include <utility>

enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorInvalidClusterSize = 912 };
OPFORGE_SIM_API const char* cudaGetErrorName(cudaError_t code);
OPFORGE_SIM_API const char* cudaGetErrorString(cudaError_t code);
inline cudaError_t cudaGetLastError() { return cudaSuccess; }  // launches report at once

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
  dim3(const opforge::sim::Index3& i) : x(i.x), y(i.y), z(i.z) {}
};

using cudaStream_t = struct CUstream_st*;
// Launches are synchronous, so there is nothing to wait for; but on a GPU there is.
OPFORGE_SIM_API cudaError_t cudaDeviceSynchronize();
OPFORGE_SIM_API cudaError_t cudaStreamSynchronize(cudaStream_t stream);

enum cudaDeviceAttr {
  cudaDevAttrMultiProcessorCount,
  cudaDevAttrMaxSharedMemoryPerBlockOptin,
  cudaDevAttrComputeCapabilityMajor,
  cudaDevAttrComputeCapabilityMinor,
};
inline cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
OPFORGE_SIM_API cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute,
                                                   int device);

enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
namespace opforge::sim {
OPFORGE_SIM_API cudaError_t allow_shared(const void* kernel, int bytes);
}
template <class... Params>
inline cudaError_t cudaFuncSetAttribute(void (*kernel)(Params...), cudaFuncAttribute, int value) {
  return opforge::sim::allow_shared(reinterpret_cast<const void*>(kernel), value);
}

enum cudaLaunchAttributeID {
  cudaLaunchAttributeProgrammaticStreamSerialization,
  cudaLaunchAttributeClusterDimension
};
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  struct {
    int programmaticStreamSerializationAllowed;
    struct {
      unsigned x, y, z;
    } clusterDim;
  } val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};

namespace opforge::sim {

// The first argument of __launch_bounds__, as warps have it; the others change no launch.
constexpr int whole_warps(int threads, int = 0, int = 0) { return (threads + 31) / 32 * 32; }

// A kernel with its arguments: run(context) executes it for the current thread.
struct Kernel {
  const void* function;
  void (*run)(void* context);
  void* context;
#if defined(__clang__)
  bool tells_bounds = false;
#else
  bool tells_bounds = true;  // __launch_bounds__ can be seen
#endif
};
OPFORGE_SIM_API cudaError_t launch(const cudaLaunchConfig_t& config, const Kernel& kernel);
OPFORGE_SIM_API int most_threads(const Kernel& kernel);  // to a block

// Makes a device current for this host thread; returns the one that was.
OPFORGE_SIM_API int64_t set_device(int64_t index);
// The current stream of the tensors' device.
OPFORGE_SIM_API cudaStream_t stream_of_tensors();

}  // namespace opforge::sim

struct cudaFuncAttributes {
  int ptxVersion;
  int maxThreadsPerBlock;
};
template <class... Params>
inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* facts, void (*kernel)(Params...)) {
  int major = 0, minor = 0;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0);
  facts->ptxVersion = 10 * major + minor;
  const opforge::sim::Kernel asked = {reinterpret_cast<const void*>(kernel), nullptr, nullptr};
  facts->maxThreadsPerBlock = opforge::sim::most_threads(asked);
  return cudaSuccess;
}

template <class... Params, class... Args>
OPFORGE_SIM_INLINE cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config,
                                                  void (*kernel)(Params...), Args&&... args) {
  struct Call {
    void (*kernel)(Params...);
    std::tuple<Params...> args;
  } call{kernel, {std::forward<Args>(args)...}};
  const auto run = [](void* context) {
    const Call& call = *static_cast<Call*>(context);
    std::apply(call.kernel, call.args);
  };
  return opforge::sim::launch(*config, {reinterpret_cast<const void*>(kernel), run, &call});
}
