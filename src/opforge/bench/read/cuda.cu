// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

#include "kernel.cuh"

namespace opforge {

Tensor row_max_cuda(const Tensor& x) {
  OPFORGE_CHECK(x.dim() == 2 && x.size(1) == kWidth && x.is_contiguous() &&
                    dtype_of(x) == DType::f32 && misalignment(data<float>(x)) == 0,
                "row_max: x must be contiguous, aligned rows of 2048 floats");
  const DeviceGuard guard(x.get_device_index());
  const int64_t rows = x.size(0);
  const Tensor y = empty({&rows, 1}, x);
  if (rows > 0) {
    launch(row_max,
           {dim3(unsigned((rows + kWarps - 1) / kWarps)), dim3(32 * kWarps), current_stream(x)},
           data<float>(x), mutable_data<float>(y), rows);
  }
  return y;
}

OPFORGE_IMPL(row_max, row_max_cuda)

}  // namespace opforge
