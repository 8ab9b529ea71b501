// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

#include "kernel.cuh"

namespace opforge {

Tensor add_bias_cuda(const Tensor& x, const Tensor& bias) {
  OPFORGE_CHECK(x.is_contiguous() && dtype_of(x) == DType::f32 && x.dim() == 2,
                "x must be a contiguous matrix of float32");
  OPFORGE_CHECK(bias.is_contiguous() && dtype_of(bias) == DType::f32 && bias.dim() == 1 &&
                    bias.size(0) == x.size(1) && same_device(bias, x),
                "bias must be contiguous float32, an element for each column of x");
  const DeviceGuard guard(x.get_device_index());
  const Tensor y = empty(sizes(x), x);
  const int n = int(x.numel());
  launch(add_bias, {dim3((n + kThreads - 1) / kThreads), dim3(kThreads), current_stream(x)},
         data<float>(x), data<float>(bias), mutable_data<float>(y), n, int(x.size(1)));
  return y;
}

OPFORGE_IMPL(add_bias, add_bias_cuda)

}  // namespace opforge
