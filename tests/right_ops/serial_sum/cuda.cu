// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

#include "kernel.cuh"

namespace opforge {

Tensor serial_sum_cuda(const Tensor& x) {
  OPFORGE_CHECK(x.dim() > 0, "serial_sum: x has no rows");
  const DeviceGuard guard(x.get_device_index());
  const Tensor y = empty(sizes(x).first(size_t(x.dim() - 1)), x);
  if (y.numel() == 0) return y;
  const MatrixView m = as_matrix(x);
  dispatch(dtype_of(x), [&]<class T>(Type<T>) {
    launch(serial_sum<T>, {dim3(unsigned(ceil_div(m.rows, 64))), dim3(64), current_stream(x)},
           m.read<T>(), mutable_data<T>(y), m.rows, m.cols);
  });
  return y;
}

OPFORGE_IMPL(serial_sum, serial_sum_cuda)

}  // namespace opforge
