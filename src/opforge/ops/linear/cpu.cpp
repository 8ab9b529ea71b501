// SPDX-License-Identifier: Apache-2.0
// The products are torch's (oneDNN). What follows them is one pass.
#include <opforge/families/product/cpu_finish_host.h>

#include "linear.h"

namespace opforge {

std::tuple<Tensor, Tensor> linear_cpu(const Tensor& x, const Tensor& weight,
                                      const std::optional<Tensor>& bias,
                                      const std::optional<Tensor>& residual, int64_t activation,
                                      double scale, const std::optional<double>& low,
                                      const std::optional<double>& high, bool, bool save) {
  linear_shape("linear", x, weight, bias, residual);
  const Finish finish = finish_of(activation, scale, low, high);
  const Tensor z = torch_linear(x, weight, bias);
  const Tensor y = finish.changes() || residual ? finish_elements(z, residual, finish) : z;
  return {y, save && needs_z(finish, residual.has_value()) ? z : no_tensor(x)};
}

std::tuple<Tensor, Tensor, Tensor> linear_backward_cpu(
    const Tensor& grad_y, const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
    const std::optional<Tensor>& y, const Tensor& z, int64_t activation, double scale,
    const std::optional<double>& low, const std::optional<double>& high, bool, bool needs_x,
    bool needs_weight, bool needs_bias) {
  const Finish finish = finish_of(activation, scale, low, high);
  check_backward(grad_y, x, weight, bias);
  const std::optional<Tensor> kept = differentiated_at(grad_y, x, weight, bias, y, z, finish);
  const Tensor none = no_tensor(grad_y);
  Tensor grad_z = grad_y, grad_bias = none;
  if (kept || needs_bias) {
    const auto [passed, sums] = finish_backward(grad_y, kept, finish);
    grad_z = passed;
    if (needs_bias) grad_bias = sums;
  }
  return {
      needs_x ? contiguous(torch_matmul(grad_z, weight)) : none,
      needs_weight ? contiguous(torch_matmul(permute(as_rows(grad_z), {1, 0}), as_rows(x))) : none,
      grad_bias};
}

OPFORGE_IMPL(linear, linear_cpu)
OPFORGE_IMPL(linear_backward, linear_backward_cpu)

}  // namespace opforge
