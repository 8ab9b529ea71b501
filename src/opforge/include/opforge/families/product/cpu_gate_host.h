// SPDX-License-Identifier: Apache-2.0
// act(gate) * up and its gradients, where the activation is chosen at run time. On the CPU.
#pragma once

#include <opforge/families/gated/cpu.h>
#include <opforge/families/gated/host.h>
#include <opforge/families/product/activation_cpu.h>

namespace opforge {

// Without `up`, the last dim of `gate` holds both.
inline Tensor gate_elements(const char* op, const Tensor& gate, const std::optional<Tensor>& up,
                            Activation activation) {
  return make_gated(op, gate, up, [&]<class T>(const auto& layout, T* y, auto*... in) {
    with_activation<T>(activation, [&](const auto& act) { gated_forward(layout, y, in..., act); });
  });
}

// The gradients of both halves of z, beside each other.
inline Tensor gate_backward(const char* op, const Tensor& grad, const Tensor& z,
                            Activation activation) {
  const auto run = [&]<class T>(const auto& layout, T* first, auto*... others) {
    with_activation<T>(activation,
                       [&](const auto& act) { gated_backward(layout, first, others..., act); });
  };
  return std::get<0>(make_gated_gradients(op, grad, z, std::nullopt, run));
}

}  // namespace opforge
