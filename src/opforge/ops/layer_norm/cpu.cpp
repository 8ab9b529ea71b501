// SPDX-License-Identifier: Apache-2.0
#include <opforge/families/norm/cpu_host.h>

#include "host.h"

namespace opforge {

std::tuple<Tensor, Tensor, Tensor, Tensor> layer_norm_cpu(
    const Tensor& x, const std::optional<Tensor>& weight, const std::optional<Tensor>& bias,
    const std::optional<Tensor>& residual, const std::optional<Tensor>& seed, double eps,
    int64_t before, int64_t after, double p, bool save) {
  const NormArguments given = layer_norm_arguments(weight, bias, seed, eps, before, after, p);
  const NormResult out = norm_forward_cpu<true>(given, x, residual, save);
  return {out.y, out.h, out.mean, out.rstd};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> layer_norm_backward_cpu(
    const Tensor& grad_y, const std::optional<Tensor>& grad_h, const std::optional<Tensor>& x,
    const std::optional<Tensor>& weight, const std::optional<Tensor>& bias,
    const std::optional<std::vector<int64_t>>& residual_shape, const Tensor& h, const Tensor& mean,
    const Tensor& rstd, const std::optional<Tensor>& seed, double eps, int64_t before,
    int64_t after, double p) {
  const NormArguments given = layer_norm_arguments(weight, bias, seed, eps, before, after, p);
  const NormGradients out = norm_backward_cpu<true>(given, grad_y, grad_h,
                                                    {x, residual_shape.has_value(), h, mean, rstd});
  return {out.x, out.weight, out.bias, out.residual};
}

OPFORGE_IMPL(layer_norm, layer_norm_cpu)
OPFORGE_IMPL(layer_norm_backward, layer_norm_backward_cpu)

}  // namespace opforge
