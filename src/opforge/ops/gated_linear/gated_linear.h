// SPDX-License-Identifier: Apache-2.0
// What gated_linear checks on the CPU and on a GPU, and where it makes z of two tensors.
#pragma once

#include <opforge/families/product/host.h>

namespace opforge {

// The shape of y. Without up_weight, gate_weight and gate_bias hold both halves.
inline std::vector<int64_t> gated_linear_shape(const Tensor& x, const Tensor& gate_weight,
                                               const std::optional<Tensor>& up_weight,
                                               const std::optional<Tensor>& gate_bias,
                                               const std::optional<Tensor>& up_bias) {
  const char* const op = "gated_linear";
  std::vector<int64_t> shape = linear_shape(op, x, gate_weight, gate_bias, {});
  if (up_weight) {
    linear_shape(op, x, *up_weight, up_bias, {});
    OPFORGE_CHECK(same_shape(gate_weight, *up_weight), op,
                  ": gate_weight and up_weight differ in shape");
    return shape;
  }
  OPFORGE_CHECK(!up_bias, op, ": up_bias needs up_weight; gate_bias can hold both halves");
  OPFORGE_CHECK(shape.back() % 2 == 0, op,
                ": without up_weight, gate_weight must hold two halves, an even number of rows");
  shape.back() /= 2;
  return shape;
}

inline std::vector<int64_t> shape_of_z(std::vector<int64_t> shape) {
  shape.back() *= 2;
  return shape;
}

// gate and up beside each other.
inline Tensor beside(const Tensor& gate, const Tensor& up) {
  const int64_t last = gate.dim() - 1, cols = gate.size(last);
  const std::vector<int64_t> shape(sizes(gate).begin(), sizes(gate).end());
  const Tensor z = empty(shape_of_z(shape), gate);
  for (int64_t i = 0; i < 2; ++i) {
    copy_into(detail::call_torch("aten::narrow", "", z, last, i * cols, cols), i == 0 ? gate : up);
  }
  return z;
}

}  // namespace opforge
