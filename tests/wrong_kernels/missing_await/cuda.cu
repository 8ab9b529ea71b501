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
  const cudaStream_t stream = current_stream(x);
  launch(block_sums, {dim3(unsigned(blocks)), dim3(kThreads), stream}, data<float>(x),
         mutable_data<float>(partial), n);
  const bool overlap_previous = true;
  launch(block_sums, {dim3(1), dim3(kThreads), stream, 0, overlap_previous}, data<float>(partial),
         mutable_data<float>(y), int(blocks));
  return y;
}

OPFORGE_IMPL(total, total_cuda)

}  // namespace opforge
