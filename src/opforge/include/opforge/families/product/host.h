// SPDX-License-Identifier: Apache-2.0
// The host side of linear layers, the same on CPU and GPU: checks, and products by torch where
// there is no kernel for them.
#pragma once

#include <opforge/families/product/finish.h>
#include <opforge/host.h>

#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace opforge {

inline Finish finish_of(int64_t activation, double scale, const std::optional<double>& low,
                        const std::optional<double>& high) {
  OPFORGE_CHECK(activation >= 0 && activation <= int64_t(Activation::sigmoid),
                "there is no activation ", activation);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  Finish finish{Activation(activation), scale};
  finish.low = low.value_or(-kInfinity);
  finish.high = high.value_or(kInfinity);
  finish.limits = low || high;
  return finish;
}

// What an op returns in place of a result that is not wanted.
inline Tensor no_tensor(const Tensor& like) {
  constexpr int64_t none[] = {0};
  return empty(none, like);
}

// The shape of x weightᵀ.
inline std::vector<int64_t> linear_shape(const char* op, const Tensor& x, const Tensor& weight,
                                         const std::optional<Tensor>& bias,
                                         const std::optional<Tensor>& residual) {
  OPFORGE_CHECK(x.dim() >= 1 && weight.dim() == 2 && x.size(x.dim() - 1) == weight.size(1), op,
                ": x must be (..., features) and weight (outputs, features)");
  OPFORGE_CHECK(same_device(x, weight) && dtype_code(x) == dtype_code(weight), op,
                ": x and weight differ in device or dtype");
  dtype_of(x);  // refuses others
  std::vector<int64_t> shape(sizes(x).begin(), sizes(x).end());
  shape.back() = weight.size(0);
  if (bias) {
    OPFORGE_CHECK(same_device(x, *bias) && dtype_code(x) == dtype_code(*bias) && bias->dim() == 1 &&
                      bias->size(0) == weight.size(0),
                  op, ": bias must be (outputs), on the device and in the dtype of x");
  }
  if (residual) {
    OPFORGE_CHECK(same_device(x, *residual) && dtype_code(x) == dtype_code(*residual) &&
                      std::ranges::equal(sizes(*residual), shape),
                  op, ": residual must have the shape, device and dtype of the result");
  }
  return shape;
}

namespace detail {

template <class... Args>
Tensor call_torch(const char* op, const char* overload, const Args&... args) {
  StableIValue stack[] = {torch::stable::detail::from(args)...};
  OPFORGE_CHECK(torch_call_dispatcher(op, overload, stack, TORCH_ABI_VERSION) == AOTI_TORCH_SUCCESS,
                "opforge: torch's ", op, " failed; out of memory?");
  return torch::stable::detail::to<Tensor>(stack[0]);
}

}  // namespace detail

inline Tensor torch_matmul(const Tensor& a, const Tensor& b) {
  return detail::call_torch("aten::matmul", "", a, b);
}

// All dims but the last one as rows.
inline Tensor as_rows(const Tensor& x) {
  if (x.dim() == 2) return x;
  int64_t rows = 1;
  for (int64_t d = 0; d + 1 < x.dim(); ++d) rows *= x.size(d);
  return detail::call_torch("aten::reshape", "", x,
                            std::vector<int64_t>{rows, x.size(x.dim() - 1)});
}

// x weightᵀ + bias by torch. Given rows, it adds the bias before it rounds the product, whatever
// the strides are; given more dims, it does not.
inline Tensor torch_linear(const Tensor& x, const Tensor& weight,
                           const std::optional<Tensor>& bias) {
  const Tensor y = detail::call_torch("aten::linear", "", as_rows(x), weight, bias);
  if (x.dim() == 2) return y;
  std::vector<int64_t> shape(sizes(x).begin(), sizes(x).end());
  shape.back() = weight.size(0);
  return detail::call_torch("aten::reshape", "", y, shape);
}

}  // namespace opforge
