// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

#include "kernel.cuh"

namespace opforge {

Tensor last_column_cuda(const Tensor& x) {
  OPFORGE_CHECK(x.is_contiguous() && x.dim() == 2 && dtype_code(x) == aoti_torch_dtype_int8(),
                "x must be a contiguous matrix of int8");
  const DeviceGuard guard(x.get_device_index());
  const int64_t rows = x.size(0);
  const Tensor y = empty({&rows, 1}, x);
  launch(last_column, {dim3(1), dim3(kThreads), current_stream(x)}, data<int8_t>(x),
         mutable_data<int8_t>(y), int(rows), int(x.size(1)));
  return y;
}

OPFORGE_IMPL(last_column, last_column_cuda)

}  // namespace opforge
