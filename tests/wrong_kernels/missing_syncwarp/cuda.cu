// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

#include "kernel.cuh"

namespace opforge {

Tensor divide_by_first_cuda(const Tensor& x) {
  OPFORGE_CHECK(x.is_contiguous() && dtype_of(x) == DType::f32 && x.dim() == 2 && x.size(1) == 32 &&
                    x.size(0) <= kRows,
                "x must be up to 4 contiguous rows of 32 elements of float32");
  const DeviceGuard guard(x.get_device_index());
  const Tensor y = empty(sizes(x), x);
  launch(divide_by_first, {dim3(1), dim3(unsigned(x.numel())), current_stream(x)}, data<float>(x),
         mutable_data<float>(y));
  return y;
}

OPFORGE_IMPL(divide_by_first, divide_by_first_cuda)

}  // namespace opforge
