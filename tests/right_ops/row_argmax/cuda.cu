// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

#include "kernel.cuh"

namespace opforge {

Tensor row_argmax_cuda(const Tensor& x) {
  OPFORGE_CHECK(x.dim() > 0 && sizes(x).back() > 0, "row_argmax: x needs rows");
  const DeviceGuard guard(x.get_device_index());
  const Tensor index = empty(sizes(x).first(size_t(x.dim() - 1)), aoti_torch_dtype_int64(), x);
  if (index.numel() == 0) return index;
  const MatrixView m = as_matrix(x);
  dispatch(dtype_of(x), [&]<class T>(Type<T>) {
    launch(row_argmax<T>, {dim3(unsigned(m.rows)), dim3(32), current_stream(x)}, m.read<T>(),
           mutable_data<int64_t>(index), m.cols);
  });
  return index;
}

OPFORGE_IMPL(row_argmax, row_argmax_cuda)

}  // namespace opforge
