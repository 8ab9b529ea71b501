// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

#include "kernel.cuh"

namespace opforge {

Tensor count_above_cuda(const Tensor& x, double limit) {
  OPFORGE_CHECK(x.dim() > 0, "count_above: x has no rows");
  const DeviceGuard guard(x.get_device_index());
  const Tensor count = empty(sizes(x).first(size_t(x.dim() - 1)), aoti_torch_dtype_int64(), x);
  if (count.numel() == 0) return count;
  const MatrixView m = as_matrix(x);
  dispatch(dtype_of(x), [&]<class T>(Type<T>) {
    launch(count_above<T>, {dim3(unsigned(m.rows)), dim3(kWarp), current_stream(x)}, m.read<T>(),
           mutable_data<int64_t>(count), m.cols, compute_t<T>(limit));
  });
  return count;
}

OPFORGE_IMPL(count_above, count_above_cuda)

}  // namespace opforge
