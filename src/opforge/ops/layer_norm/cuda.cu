// SPDX-License-Identifier: Apache-2.0
#include <opforge/families/norm/host.h>

#include "kernel.cuh"

namespace opforge {

std::tuple<Tensor, Tensor, Tensor, Tensor> layer_norm_cuda(
    const Tensor& x, const std::optional<Tensor>& weight, const std::optional<Tensor>& bias,
    const std::optional<Tensor>& residual, const std::optional<Tensor>& seed, double eps,
    int64_t before, int64_t after, double p, bool save) {
  const NormResult out = norm_forward<true>("layer_norm", x, weight, bias, residual,
                                            {seed, before, after, p}, eps, 0, save);
  return {out.y, out.h, out.mean, out.rstd};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> layer_norm_backward_cuda(
    const Tensor& grad_y, const std::optional<Tensor>& grad_h, const std::optional<Tensor>& x,
    const std::optional<Tensor>& weight, const std::optional<Tensor>& bias,
    const std::optional<std::vector<int64_t>>& residual_shape, const Tensor& h, const Tensor& mean,
    const Tensor& rstd, const std::optional<Tensor>& seed, double eps, int64_t before,
    int64_t after, double p) {
  const NormSaved saved{x, weight, bias, residual_shape.has_value(), h, mean, rstd};
  const NormGradients out =
      norm_backward<true>("layer_norm", grad_y, grad_h, saved, {seed, before, after, p}, eps, 0);
  return {out.x, out.weight, out.bias, out.residual};
}

OPFORGE_IMPL(layer_norm, layer_norm_cuda)
OPFORGE_IMPL(layer_norm_backward, layer_norm_backward_cuda)

}  // namespace opforge
