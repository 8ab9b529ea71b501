// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

#include "kernel.cuh"

namespace opforge {

Tensor rows_in_grid_y_cuda(const Tensor& x) {
  OPFORGE_CHECK(x.dim() > 0, "rows_in_grid_y: x needs a dimension");
  const DeviceGuard guard(x.get_device_index());
  const Tensor y = empty(sizes(x), x);
  if (y.numel() == 0) return y;
  const MatrixView m = as_matrix(x);
  dispatch(dtype_of(x), [&]<class T>(Type<T>) {
    // Wrong: rows belong into x, which holds 2^31 blocks.
    const dim3 grid(unsigned(ceil_div(m.cols, kThreads)), unsigned(m.rows));
    launch(square<T>, {grid, dim3(kThreads), current_stream(x)}, m.read<T>(), mutable_data<T>(y),
           m.cols);
  });
  return y;
}

OPFORGE_IMPL(rows_in_grid_y, rows_in_grid_y_cuda)

}  // namespace opforge
