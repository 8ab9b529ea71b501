// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

#include "kernel.cuh"

namespace opforge {

Tensor total_cuda(const Tensor& x) {
  OPFORGE_CHECK(x.is_contiguous() && dtype_of(x) == DType::f32, "x must be contiguous float32");
  const DeviceGuard guard(x.get_device_index());
  const int64_t one = 1;
  const Tensor y = empty({&one, 1}, x);
  sum_into(data<float>(x), mutable_data<float>(y), int(x.numel()), current_stream(x));
  return y;
}

OPFORGE_IMPL(total, total_cuda)

}  // namespace opforge
