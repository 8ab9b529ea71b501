// SPDX-License-Identifier: Apache-2.0
#include <opforge/families/norm/host.h>

#include "kernel.cuh"

namespace opforge {

std::tuple<Tensor, Tensor, Tensor> rms_norm_cuda(const Tensor& x,
                                                 const std::optional<Tensor>& weight,
                                                 const std::optional<Tensor>& residual,
                                                 const std::optional<Tensor>& seed, double eps,
                                                 double offset, int64_t before, int64_t after,
                                                 double p, bool save) {
  const NormResult out = norm_forward<false>("rms_norm", x, weight, std::nullopt, residual,
                                             {seed, before, after, p}, eps, offset, save);
  return {out.y, out.h, out.rstd};
}

std::tuple<Tensor, Tensor, Tensor> rms_norm_backward_cuda(
    const Tensor& grad_y, const std::optional<Tensor>& grad_h, const std::optional<Tensor>& x,
    const std::optional<Tensor>& weight, const std::optional<std::vector<int64_t>>& residual_shape,
    const Tensor& h, const Tensor& rstd, const std::optional<Tensor>& seed, double eps,
    double offset, int64_t before, int64_t after, double p) {
  const NormSaved saved{x, weight, std::nullopt, residual_shape.has_value(), h, rstd, rstd};
  const NormGradients out = norm_backward<false>("rms_norm", grad_y, grad_h, saved,
                                                 {seed, before, after, p}, eps, offset);
  return {out.x, out.weight, out.residual};
}

OPFORGE_IMPL(rms_norm, rms_norm_cuda)
OPFORGE_IMPL(rms_norm_backward, rms_norm_backward_cuda)

}  // namespace opforge
