// SPDX-License-Identifier: Apache-2.0
// act(gate) * up and its gradients, where the activation is chosen at run time. On the GPU.
#pragma once

#include <opforge/families/gated/host.h>

#include <opforge/families/gated/kernel.cuh>
#include <opforge/families/product/activation.cuh>

namespace opforge {

// For families/gated/kernel.cuh. All threads choose the same activation.
template <class T>
struct ChosenActivation {
  using A = compute_t<T>;
  Activation activation;

  __device__ __forceinline__ A value(A x) const {
    A y;
    with_activation<T>(activation, [&](const auto& act) { y = act.value(x); });
    return y;
  }
  __device__ __forceinline__ A gradient(A x, A passed, A& value) const {
    A result;
    with_activation<T>(activation,
                       [&](const auto& act) { result = act.gradient(x, passed, value); });
    return result;
  }
};

// Without `up`, the last dim of `gate` holds both.
inline Tensor gate_elements(const char* op, const Tensor& gate, const std::optional<Tensor>& up,
                            Activation activation) {
  return make_gated(op, gate, up, [&]<class T>(const auto& layout, T* y, auto*... in) {
    gated_forward(layout, y, in..., ChosenActivation<T>{activation}, current_stream(gate));
  });
}

// The gradients of both halves of z, beside each other.
inline Tensor gate_backward(const char* op, const Tensor& grad, const Tensor& z,
                            Activation activation) {
  const auto run = [&]<class T>(const auto& layout, T* first, auto*... others) {
    gated_backward(layout, first, others..., ChosenActivation<T>{activation}, current_stream(z));
  };
  return std::get<0>(make_gated_gradients(op, grad, z, std::nullopt, run));
}

}  // namespace opforge
