// SPDX-License-Identifier: Apache-2.0
#include <opforge/host/split.h>

#include "kernel.cuh"

namespace opforge {

Tensor cumsum_cuda(const Tensor& x, int64_t dim, bool exclusive, bool reverse) {
  const int64_t rank = std::max<int64_t>(x.dim(), 1);
  OPFORGE_CHECK(dim >= -rank && dim < rank, "cumsum: dim ", dim, " is out of range");
  const DeviceGuard guard(x.get_device_index());
  const Tensor y = empty(sizes(x), x);
  if (x.numel() == 0) return y;
  const SplitView s = split_at(x, dim < 0 ? dim + rank : dim);
  const cudaStream_t stream = current_stream(x);
  dispatch(dtype_of(x), [&]<class T>(Type<T>) {
    Tensor kept;  // while the launches that use it are queued
    const auto workspace = [&](int64_t count) {
      kept = empty({&count, 1}, accumulator_dtype(x), x);
      return mutable_data<compute_t<T>>(kept);
    };
    const T* const from = data<T>(s.tensor);
    T* const to = mutable_data<T>(y);
    if (s.inner == 1) {
      RowScan<T> p{from, to, s.outer, s.length, s.outer_stride};
      p.exclusive = exclusive;
      p.reverse = reverse;
      cumsum_rows(p, stream, workspace);
    } else {
      ColumnScan<T> p{from, to, s.length, s.inner, s.outer_stride, s.length_stride};
      p.exclusive = exclusive;
      p.reverse = reverse;
      cumsum_columns(p, s.outer, stream, workspace);
    }
  });
  return y;
}

OPFORGE_IMPL(cumsum, cumsum_cuda)

}  // namespace opforge
