// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

#include "kernel.cuh"

namespace opforge {

Tensor block_beyond_bounds_cuda(const Tensor& x) {
  OPFORGE_CHECK(x.dim() > 0 && sizes(x).back() > 0, "block_beyond_bounds: x needs rows");
  const DeviceGuard guard(x.get_device_index());
  const Tensor y = empty(sizes(x).first(size_t(x.dim() - 1)), x);
  if (y.numel() == 0) return y;
  const MatrixView m = as_matrix(x);
  int threads = 32;
  while (threads < m.cols && threads < 1024) threads *= 2;  // wrong: the kernel takes kThreads
  dispatch(dtype_of(x), [&]<class T>(Type<T>) {
    launch(row_max<T>, {dim3(unsigned(m.rows)), dim3(unsigned(threads)), current_stream(x)},
           m.read<T>(), mutable_data<T>(y), m.cols);
  });
  return y;
}

OPFORGE_IMPL(block_beyond_bounds, block_beyond_bounds_cuda)

}  // namespace opforge
