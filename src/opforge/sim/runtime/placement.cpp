// SPDX-License-Identifier: Apache-2.0
#include "placement.h"

#include <execinfo.h>

#include <algorithm>
#include <utility>

#include "report.h"

struct CUstream_st {};

namespace opforge::sim {

namespace {

constexpr int64_t kTensors = -1;  // get_device_index() of CPU tensors

// The current one, of each host thread; another than that of the tensors until a guard changes it.
thread_local int64_t device = 0;

CUstream_st side_stream;  // nothing but its address is used

// Thrown at the next launch or when the op ends: a destructor, which may not throw, may wait, too.
void report_wait(const char* function, const void* pc) {
  if (!settings.placement) return;
  report(
      "synchronises",
      std::string(function) +
          "() makes the host wait for the GPU and cannot be captured in a CUDA graph; remove it, "
          "a stream keeps its order anyway",
      pc);
}

}  // namespace

const void* outside_launch(const void* pc) {
  void* stack[16];
  void** const end = stack + backtrace(stack, std::size(stack));
  for (void** frame = std::find(stack, end, pc); frame != end; ++frame) {
    if (describe(*frame) != kUnknown) return *frame;
  }
  return pc;
}

int64_t set_device(int64_t index) { return std::exchange(device, index); }

cudaStream_t stream_of_tensors() { return settings.placement ? &side_stream : nullptr; }

void check_placement(const cudaLaunchConfig_t& config, const Kernel& kernel, const void* pc) {
  if (!settings.placement) return;
  const bool guarded = device == kTensors, ordered = config.stream == stream_of_tensors();
  if (guarded && ordered) return;
  pc = outside_launch(pc);
  const std::string who = "kernel " + kernel_name(kernel.function) + " is launched on ";
  if (!guarded) {
    report("device-guard",
           who +
               "the current device, not on that of its tensors; put "
               "`const DeviceGuard guard(x.get_device_index());` before it",
           pc);
  }
  if (!ordered) {
    report("stream",
           who +
               "another stream than the current one, so nothing orders it after what makes its "
               "tensors; pass `current_stream(x)`",
           pc);
  }
}

}  // namespace opforge::sim

cudaError_t cudaDeviceSynchronize() {
  opforge::sim::report_wait("cudaDeviceSynchronize", __builtin_return_address(0));
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t) {
  opforge::sim::report_wait("cudaStreamSynchronize", __builtin_return_address(0));
  return cudaSuccess;
}
