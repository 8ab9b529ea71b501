// SPDX-License-Identifier: Apache-2.0
#include <opforge/families/gated/host.h>

#include <opforge/families/activations/device.cuh>
#include <opforge/families/gated/kernel.cuh>

namespace opforge {

Tensor swiglu_cuda(const Tensor& gate, const std::optional<Tensor>& up) {
  const DeviceGuard guard(gate.get_device_index());
  return make_gated("swiglu", gate, up, [&]<class T>(const auto& layout, T* y, auto*... in) {
    gated_forward(layout, y, in..., Silu<T>{}, current_stream(gate));
  });
}

std::tuple<Tensor, Tensor> swiglu_backward_cuda(const Tensor& grad_y, const Tensor& gate,
                                                const std::optional<Tensor>& up) {
  const DeviceGuard guard(gate.get_device_index());
  return make_gated_gradients("swiglu_backward", grad_y, gate, up,
                              [&]<class T>(const auto& layout, T* first, auto*... others) {
                                gated_backward(layout, first, others..., Silu<T>{},
                                               current_stream(gate));
                              });
}

OPFORGE_IMPL(swiglu, swiglu_cuda)
OPFORGE_IMPL(swiglu_backward, swiglu_backward_cuda)

}  // namespace opforge
