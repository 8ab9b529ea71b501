// SPDX-License-Identifier: Apache-2.0
// What grouped_linear and its backward check, on the CPU and on a GPU.
#pragma once

#include <opforge/families/product/host.h>

namespace opforge {

inline void check_grouped(const char* op, const Tensor& x, const Tensor& weights,
                          const Tensor& offsets) {
  OPFORGE_CHECK(x.dim() == 2 && weights.dim() == 3 && x.size(1) == weights.size(2), op,
                ": x must be (rows, features) and weights (groups, outputs, features)");
  OPFORGE_CHECK(same_device(x, weights) && dtype_code(x) == dtype_code(weights), op,
                ": x and weights differ in device or dtype");
  dtype_of(x);  // fails where there are no products of such elements
  const int32_t code = dtype_code(offsets);
  OPFORGE_CHECK(same_device(x, offsets) && offsets.dim() == 1 &&
                    offsets.size(0) == weights.size(0) &&
                    (code == aoti_torch_dtype_int32() || code == aoti_torch_dtype_int64()),
                op, ": offsets must be an int32 for each group, on the device of x");
  constexpr int64_t kMost = (int64_t(1) << 31) - 1024;  // tiles reach beyond the end
  for (const int64_t size : {x.size(0), x.size(1), weights.size(0), weights.size(1)}) {
    OPFORGE_CHECK(size < kMost, op, ": no size may be 2^31 - 1024 or more");
  }
}

inline void check_options(const char* op, const Tensor& x, const Tensor& weights,
                          const std::optional<Tensor>& biases, bool tf32) {
  OPFORGE_CHECK(!tf32 || dtype_of(x) == DType::f32, op, ": tf32 is for float32");
  if (!biases) return;
  OPFORGE_CHECK(same_device(x, *biases) && dtype_code(x) == dtype_code(*biases) &&
                    biases->dim() == 2 && biases->size(0) == weights.size(0) &&
                    biases->size(1) == weights.size(1),
                op, ": biases must be (groups, outputs), on the device and in the dtype of x");
}

inline void check_grad(const Tensor& grad_y, const Tensor& x, const Tensor& weights) {
  OPFORGE_CHECK(grad_y.dim() == 2 && grad_y.size(0) == x.size(0) &&
                    grad_y.size(1) == weights.size(1) && same_device(grad_y, x) &&
                    dtype_code(grad_y) == dtype_code(x),
                "grouped_linear_backward: grad_y differs from y in device, shape or dtype");
}

// A new contiguous tensor of this shape.
inline Tensor new_tensor(std::initializer_list<int64_t> shape, const Tensor& like) {
  return empty({shape.begin(), shape.size()}, like);
}

}  // namespace opforge
