// SPDX-License-Identifier: Apache-2.0
#include <opforge/families/gated/host.h>

#include <opforge/families/activations/device.cuh>
#include <opforge/families/gated/kernel.cuh>

namespace opforge {

Tensor geglu_cuda(const Tensor& gate, const std::optional<Tensor>& up, bool tanh) {
  const DeviceGuard guard(gate.get_device_index());
  return make_gated("geglu", gate, up, [&]<class T>(const auto& layout, T* y, auto*... in) {
    gated_forward(layout, y, in..., Gelu<T>{tanh}, current_stream(gate));
  });
}

std::tuple<Tensor, Tensor> geglu_backward_cuda(const Tensor& grad_y, const Tensor& gate,
                                               const std::optional<Tensor>& up, bool tanh) {
  const DeviceGuard guard(gate.get_device_index());
  return make_gated_gradients("geglu_backward", grad_y, gate, up,
                              [&]<class T>(const auto& layout, T* first, auto*... others) {
                                gated_backward(layout, first, others..., Gelu<T>{tanh},
                                               current_stream(gate));
                              });
}

OPFORGE_IMPL(geglu, geglu_cuda)
OPFORGE_IMPL(geglu_backward, geglu_backward_cuda)

}  // namespace opforge
