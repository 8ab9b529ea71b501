// SPDX-License-Identifier: Apache-2.0
// What opforge/host.h tells the simulator: memory the op makes and fills, when and where it runs.
#pragma once

#include <opforge_sim/host_api.h>
#include <opforge_sim/runtime.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/tensor.h>

#include <tuple>

namespace opforge::sim {

using torch::stable::Tensor;

// A device is no more than its index; a launch looks whether it is that of the tensors.
class DeviceGuard {
 public:
  explicit DeviceGuard(int64_t index) : before_(set_device(index)) {}
  ~DeviceGuard() { set_device(before_); }
  DeviceGuard(const DeviceGuard&) = delete;

 private:
  int64_t before_;
};

inline cudaStream_t current_stream(const Tensor&) { return stream_of_tensors(); }

inline size_t element_size(const Tensor& x) {
  int32_t dtype = 0;
  aoti_torch_get_dtype(x.get(), &dtype);
  return aoti_torch_dtype_element_size(dtype);
}

// Outputs and workspaces are dense, so their elements are their bytes.
inline void note_new(const Tensor& x) {
  allocated(x.mutable_data_ptr(), size_t(x.numel()) * element_size(x));
}
inline void note_filled(const Tensor& x) {
  written_by_host(x.const_data_ptr(), size_t(x.numel()) * element_size(x));
}

inline void note_returned(const Tensor& x) {
  returns(x.const_data_ptr(), size_t(x.numel()) * element_size(x), element_size(x));
}
template <class... T>
inline void note_returned(const std::tuple<T...>& results) {
  std::apply([](const auto&... x) { (note_returned(x), ...); }, results);
}

// Calls an op's function between enter_op and leave_op, whatever happens.
template <auto Function>
struct Entry;
template <class R, class... A, R (*Function)(A...)>
struct Entry<Function> {
  struct Scope {
    Scope() { enter_op(); }
    ~Scope() { leave_op(); }
  };
  static R call(A... args) {
    const Scope scope;
    R result = Function(args...);
    note_returned(result);
    finish_op();
    return result;
  }
};

}  // namespace opforge::sim

#define OPFORGE_ENTRY(op, function) (&::opforge::sim::Entry<&function>::call)
