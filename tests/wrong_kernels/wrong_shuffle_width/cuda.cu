// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

#include "kernel.cuh"

namespace opforge {

Tensor row_sums_cuda(const Tensor& x) {
  OPFORGE_CHECK(x.is_contiguous() && dtype_of(x) == DType::f32 && x.numel() == 16 * kGroup,
                "x must be 16 contiguous rows of float32");
  const DeviceGuard guard(x.get_device_index());
  const int64_t rows = x.size(0);
  const Tensor y = empty({&rows, 1}, x);
  launch(row_sums, {dim3(1), dim3(unsigned(x.numel())), current_stream(x)}, data<float>(x),
         mutable_data<float>(y));
  return y;
}

OPFORGE_IMPL(row_sums, row_sums_cuda)

}  // namespace opforge
