// SPDX-License-Identifier: Apache-2.0
#include <opforge/families/softmax/cuda_host.h>

namespace opforge {

Tensor softmax_cuda(const Tensor& x, const std::optional<Tensor>& mask, double scale, bool causal) {
  return softmax_forward<Result::probabilities>("softmax", x, mask, scale, causal);
}

Tensor softmax_backward_cuda(const Tensor& grad_y, const Tensor& y, double scale, bool causal) {
  return softmax_backward<Result::probabilities>("softmax", grad_y, y, scale, causal);
}

OPFORGE_IMPL(softmax, softmax_cuda)
OPFORGE_IMPL(softmax_backward, softmax_backward_cuda)

}  // namespace opforge
