// SPDX-License-Identifier: Apache-2.0
#include <opforge/families/activations/cpu.h>
#include <opforge/families/gated/cpu.h>
#include <opforge/families/gated/host.h>

namespace opforge {

Tensor swiglu_cpu(const Tensor& gate, const std::optional<Tensor>& up) {
  return make_gated("swiglu", gate, up, []<class T>(const auto& layout, T* y, auto*... in) {
    gated_forward(layout, y, in..., Silu<T>{});
  });
}

std::tuple<Tensor, Tensor> swiglu_backward_cpu(const Tensor& grad_y, const Tensor& gate,
                                               const std::optional<Tensor>& up) {
  return make_gated_gradients("swiglu_backward", grad_y, gate, up,
                              []<class T>(const auto& layout, T* first, auto*... others) {
                                gated_backward(layout, first, others..., Silu<T>{});
                              });
}

OPFORGE_IMPL(swiglu, swiglu_cpu)
OPFORGE_IMPL(swiglu_backward, swiglu_backward_cpu)

}  // namespace opforge
