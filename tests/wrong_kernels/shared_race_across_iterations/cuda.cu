// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

#include "kernel.cuh"

namespace opforge {

Tensor centre_rows_cuda(const Tensor& x) {
  OPFORGE_CHECK(
      x.is_contiguous() && dtype_of(x) == DType::f32 && x.dim() == 2 && x.size(1) == kCols,
      "x must be contiguous float32 with 64 columns");
  const DeviceGuard guard(x.get_device_index());
  const Tensor y = empty(sizes(x), x);
  launch(centre_rows, {dim3(2), dim3(kCols), current_stream(x)}, data<float>(x),
         mutable_data<float>(y), int(x.size(0)));
  return y;
}

OPFORGE_IMPL(centre_rows, centre_rows_cuda)

}  // namespace opforge
