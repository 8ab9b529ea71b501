// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

#include "kernel.cuh"

namespace opforge {

Tensor total_cuda(const Tensor& x) {
  OPFORGE_CHECK(x.is_contiguous() && dtype_of(x) == DType::f32, "x must be contiguous float32");
  const DeviceGuard guard(x.get_device_index());
  const int64_t one = 1;
  const Tensor y = empty({&one, 1}, x);
  const int n = int(x.numel());
  const int64_t blocks = (n + kThreads - 1) / kThreads;
  const Tensor partial = empty({&blocks, 1}, x);
  const Tensor arrived = empty({&one, 1}, aoti_torch_dtype_int32(), x);
  fill_zero(arrived);
  launch(total, {dim3(unsigned(blocks)), dim3(kThreads), current_stream(x)}, data<float>(x),
         mutable_data<float>(partial), mutable_data<int>(arrived), mutable_data<float>(y), n);
  return y;
}

OPFORGE_IMPL(total, total_cuda)

}  // namespace opforge
