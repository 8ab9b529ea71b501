// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

#include "kernel.cuh"

namespace opforge {

Tensor row_sums_cuda(const Tensor& x) {
  OPFORGE_CHECK(
      x.is_contiguous() && dtype_of(x) == DType::f32 && x.dim() == 2 && x.size(1) == kCols,
      "x must be contiguous float32 with 128 columns");
  const DeviceGuard guard(x.get_device_index());
  const int64_t rows = x.size(0);
  const Tensor y = empty({&rows, 1}, x);
  fill_zero(y);
  launch(row_sums, {dim3(unsigned(rows)), dim3(kCols), current_stream(x)}, data<float>(x),
         mutable_data<float>(y));
  return y;
}

OPFORGE_IMPL(row_sums, row_sums_cuda)

}  // namespace opforge
