// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

#include "kernel.cuh"

namespace opforge {

Tensor last_block_sum_cuda(const Tensor& x) {
  OPFORGE_CHECK(x.dim() > 0, "last_block_sum: x has no dims");
  const DeviceGuard guard(x.get_device_index());
  const Tensor y = empty({}, x);
  if (x.numel() == 0) {
    fill_zero(y);
    return y;
  }
  const MatrixView m = as_matrix(x);
  const int64_t one = 1, blocks = std::min<int64_t>(ceil_div(x.numel(), 4 * kThreads), 64);
  const Tensor partial = empty({&blocks, 1}, accumulator_dtype(x), x);
  const Tensor arrived = empty({&one, 1}, aoti_torch_dtype_int32(), x);
  fill_zero(arrived);
  dispatch(dtype_of(x), [&]<class T>(Type<T>) {
    launch(last_block_sum<T>, {dim3(unsigned(blocks)), dim3(kThreads), current_stream(x)},
           m.read<T>(), mutable_data<T>(y), mutable_data<compute_t<T>>(partial),
           mutable_data<int>(arrived), m.cols, x.numel());
  });
  return y;
}

OPFORGE_IMPL(last_block_sum, last_block_sum_cuda)

}  // namespace opforge
