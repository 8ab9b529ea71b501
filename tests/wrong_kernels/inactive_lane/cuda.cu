// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

#include "kernel.cuh"

namespace opforge {

Tensor warp_total_cuda(const Tensor& x) {
  OPFORGE_CHECK(x.is_contiguous() && dtype_of(x) == DType::f32 && x.numel() <= 32,
                "x must be up to 32 contiguous elements of float32");
  const DeviceGuard guard(x.get_device_index());
  const int64_t one = 1;
  const Tensor y = empty({&one, 1}, x);
  launch(warp_total, {dim3(1), dim3(32), current_stream(x)}, data<float>(x), mutable_data<float>(y),
         int(x.numel()));
  return y;
}

OPFORGE_IMPL(warp_total, warp_total_cuda)

}  // namespace opforge
