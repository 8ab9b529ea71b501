// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

#include "kernel.cuh"

namespace opforge {

Tensor suffix_sums_cuda(const Tensor& x) {
  OPFORGE_CHECK(x.dim() > 0, "suffix_sums: x has no rows");
  const DeviceGuard guard(x.get_device_index());
  const Tensor y = empty(sizes(x), x);
  if (y.numel() == 0) return y;
  const MatrixView m = as_matrix(x);
  dispatch(dtype_of(x), [&]<class T>(Type<T>) {
    launch(suffix_sums<T>,
           {dim3(unsigned(ceil_div(m.rows, kRows))), dim3(kRows * kWarp), current_stream(x)},
           m.read<T>(), mutable_data<T>(y), m.rows, m.cols);
  });
  return y;
}

OPFORGE_IMPL(suffix_sums, suffix_sums_cuda)

}  // namespace opforge
