// SPDX-License-Identifier: Apache-2.0
#include <opforge/families/activations/cpu.h>
#include <opforge/families/gated/cpu.h>
#include <opforge/families/gated/host.h>

namespace opforge {

Tensor reglu_cpu(const Tensor& gate, const std::optional<Tensor>& up) {
  return make_gated("reglu", gate, up, []<class T>(const auto& layout, T* y, auto*... in) {
    gated_forward(layout, y, in..., Relu<T>{});
  });
}

std::tuple<Tensor, Tensor> reglu_backward_cpu(const Tensor& grad_y, const Tensor& gate,
                                              const std::optional<Tensor>& up) {
  return make_gated_gradients("reglu_backward", grad_y, gate, up,
                              []<class T>(const auto& layout, T* first, auto*... others) {
                                gated_backward(layout, first, others..., Relu<T>{});
                              });
}

OPFORGE_IMPL(reglu, reglu_cpu)
OPFORGE_IMPL(reglu_backward, reglu_backward_cpu)

}  // namespace opforge
