// SPDX-License-Identifier: Apache-2.0
// The host side of y = act(gate) * up, the same on CPU and GPU: checks, allocation, operands.
// Without `up` the rows of `gate` hold both, one half after the other.
#pragma once

#include <opforge/host.h>

#include <optional>
#include <tuple>
#include <vector>

namespace opforge {

// The shape of y.
inline std::vector<int64_t> gated_shape(const char* op, const Tensor& gate,
                                        const std::optional<Tensor>& up) {
  const auto size = sizes(gate);
  std::vector<int64_t> shape(size.begin(), size.end());
  if (up) {
    OPFORGE_CHECK(
        same_device(gate, *up) && same_shape(gate, *up) && dtype_code(gate) == dtype_code(*up), op,
        ": gate and up differ in device, shape or dtype");
  } else {
    OPFORGE_CHECK(!shape.empty() && shape.back() % 2 == 0, op,
                  ": without up, the last dim of gate must hold two halves");
    shape.back() /= 2;
  }
  return shape;
}

// Where up starts, given where gate does: in its own tensor, or in the second half of the rows.
template <class T>
inline const T* up_data(const Tensor& gate, const std::optional<Tensor>& up) {
  if (up) return data<T>(*up);
  return data<T>(gate) + sizes(gate).back() / 2 * strides(gate).back();
}

// Makes y and calls run(layout, y, gate, up): operand 0 of the layout is y, which is dense.
template <class Run>
Tensor make_gated(const char* op, const Tensor& gate, const std::optional<Tensor>& up,
                  const Run& run) {
  const std::vector<int64_t> shape = gated_shape(op, gate, up);
  const Tensor y = empty(shape, gate);
  if (y.numel() == 0) return y;
  const auto layout = flatten<3>(shape, {shape, shape, shape},
                                 {strides(y), strides(gate), strides(up.value_or(gate))});
  if (!layout.fits) {  // too scattered: copies are not
    return make_gated(op, contiguous(gate), up ? std::optional(contiguous(*up)) : up, run);
  }
  dispatch(dtype_of(gate), [&]<class T>(Type<T>) {
    run(layout, mutable_data<T>(y), data<T>(gate), up_data<T>(gate, up));
  });
  return y;
}

// Makes the gradients and calls run(layout, grad_gate, grad_up, grad_y, gate, up), operands of the
// layout in this order. Packed, the second gradient is empty: the first one holds both.
template <class Run>
std::tuple<Tensor, Tensor> make_gated_gradients(const char* op, const Tensor& grad_y,
                                                const Tensor& gate, const std::optional<Tensor>& up,
                                                const Run& run) {
  const std::vector<int64_t> shape = gated_shape(op, gate, up);
  OPFORGE_CHECK(same_device(grad_y, gate) && dtype_code(grad_y) == dtype_code(gate) &&
                    std::ranges::equal(sizes(grad_y), shape),
                op, ": grad_y differs from y in device, shape or dtype");
  constexpr int64_t none[] = {0};
  const Tensor grad_gate = empty(sizes(gate), gate);
  const Tensor grad_up = empty(up ? sizes(*up) : std::span<const int64_t>(none), gate);
  if (grad_y.numel() == 0) return {grad_gate, grad_up};
  const auto layout = flatten<5>(shape, {shape, shape, shape, shape, shape},
                                 {strides(grad_gate), strides(up ? grad_up : grad_gate),
                                  strides(grad_y), strides(gate), strides(up.value_or(gate))});
  if (!layout.fits) {
    return make_gated_gradients(op, contiguous(grad_y), contiguous(gate),
                                up ? std::optional(contiguous(*up)) : up, run);
  }
  dispatch(dtype_of(gate), [&]<class T>(Type<T>) {
    T* const first = mutable_data<T>(grad_gate);
    T* const second = up ? mutable_data<T>(grad_up) : first + shape.back();
    run(layout, first, second, data<T>(grad_y), data<T>(gate), up_data<T>(gate, up));
  });
  return {grad_gate, grad_up};
}

}  // namespace opforge
