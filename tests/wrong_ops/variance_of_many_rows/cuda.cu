// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

#include "kernel.cuh"

namespace opforge {

Tensor variance_of_many_rows_cuda(const Tensor& x) {
  OPFORGE_CHECK(x.dim() > 0, "variance_of_many_rows: x needs a dimension");
  const DeviceGuard guard(x.get_device_index());
  const Tensor y = empty(sizes(x).first(size_t(x.dim() - 1)), x);
  if (y.numel() == 0) return y;
  const MatrixView m = as_matrix(x);
  const bool at_once = m.cols > 16384 && m.rows >= 4 * multiprocessors();
  dispatch(dtype_of(x), [&]<class T>(Type<T>) {
    launch(row_variance<T>, {dim3(unsigned(m.rows)), dim3(kVarianceThreads), current_stream(x)},
           m.read<T>(), mutable_data<T>(y), m.cols, at_once);
  });
  return y;
}

OPFORGE_IMPL(variance_of_many_rows, variance_of_many_rows_cuda)

}  // namespace opforge
