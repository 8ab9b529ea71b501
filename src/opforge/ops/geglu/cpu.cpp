// SPDX-License-Identifier: Apache-2.0
#include <opforge/families/activations/cpu.h>
#include <opforge/families/gated/cpu.h>
#include <opforge/families/gated/host.h>

namespace opforge {

Tensor geglu_cpu(const Tensor& gate, const std::optional<Tensor>& up, bool tanh) {
  return make_gated("geglu", gate, up, [tanh]<class T>(const auto& layout, T* y, auto*... in) {
    tanh ? gated_forward(layout, y, in..., Gelu<T, true>{})
         : gated_forward(layout, y, in..., Gelu<T, false>{});
  });
}

std::tuple<Tensor, Tensor> geglu_backward_cpu(const Tensor& grad_y, const Tensor& gate,
                                              const std::optional<Tensor>& up, bool tanh) {
  return make_gated_gradients("geglu_backward", grad_y, gate, up,
                              [tanh]<class T>(const auto& layout, T* first, auto*... others) {
                                tanh ? gated_backward(layout, first, others..., Gelu<T, true>{})
                                     : gated_backward(layout, first, others..., Gelu<T, false>{});
                              });
}

OPFORGE_IMPL(geglu, geglu_cpu)
OPFORGE_IMPL(geglu_backward, geglu_backward_cpu)

}  // namespace opforge
