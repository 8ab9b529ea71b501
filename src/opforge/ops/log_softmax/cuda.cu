// SPDX-License-Identifier: Apache-2.0
#include <opforge/families/softmax/cuda_host.h>

namespace opforge {

Tensor log_softmax_cuda(const Tensor& x, const std::optional<Tensor>& mask, double scale,
                        bool causal) {
  return softmax_forward<Result::logarithms>("log_softmax", x, mask, scale, causal);
}

Tensor log_softmax_backward_cuda(const Tensor& grad_y, const Tensor& y, double scale, bool causal) {
  return softmax_backward<Result::logarithms>("log_softmax", grad_y, y, scale, causal);
}

OPFORGE_IMPL(log_softmax, log_softmax_cuda)
OPFORGE_IMPL(log_softmax_backward, log_softmax_backward_cuda)

}  // namespace opforge
