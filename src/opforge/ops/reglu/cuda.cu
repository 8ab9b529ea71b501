// SPDX-License-Identifier: Apache-2.0
#include <opforge/families/gated/host.h>

#include <opforge/families/activations/device.cuh>
#include <opforge/families/gated/kernel.cuh>

namespace opforge {

Tensor reglu_cuda(const Tensor& gate, const std::optional<Tensor>& up) {
  const DeviceGuard guard(gate.get_device_index());
  return make_gated("reglu", gate, up, [&]<class T>(const auto& layout, T* y, auto*... in) {
    gated_forward(layout, y, in..., Relu<T>{}, current_stream(gate));
  });
}

std::tuple<Tensor, Tensor> reglu_backward_cuda(const Tensor& grad_y, const Tensor& gate,
                                               const std::optional<Tensor>& up) {
  const DeviceGuard guard(gate.get_device_index());
  return make_gated_gradients("reglu_backward", grad_y, gate, up,
                              [&]<class T>(const auto& layout, T* first, auto*... others) {
                                gated_backward(layout, first, others..., Relu<T>{},
                                               current_stream(gate));
                              });
}

OPFORGE_IMPL(reglu, reglu_cuda)
OPFORGE_IMPL(reglu_backward, reglu_backward_cuda)

}  // namespace opforge
