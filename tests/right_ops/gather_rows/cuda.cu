// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

#include "kernel.cuh"

namespace opforge {

Tensor gather_rows_cuda(const Tensor& table, const Tensor& index) {
  const bool wide = dtype_code(index) == aoti_torch_dtype_int64();
  OPFORGE_CHECK(wide || dtype_code(index) == aoti_torch_dtype_int32(),
                "gather_rows: index is int32 or int64");
  OPFORGE_CHECK(table.dim() == 2 && index.dim() == 1 && same_device(table, index),
                "gather_rows: table is a matrix and index a vector, on one device");
  const DeviceGuard guard(table.get_device_index());
  const int64_t shape[] = {index.size(0), table.size(1)};
  const Tensor y = empty(shape, table);
  if (y.numel() == 0) return y;
  dispatch(dtype_of(table), [&]<class T>(Type<T>) {
    const Matrix<const T> from{data<T>(table), table.stride(0), table.stride(1)};
    const auto run = [&]<class I>(Type<I>) {
      launch(gather_rows<T, I>, {dim3(unsigned(shape[0])), dim3(kThreads), current_stream(table)},
             from, Matrix<const I>{data<I>(index), index.stride(0), 0}, mutable_data<T>(y),
             table.size(0), shape[1]);
    };
    wide ? run(Type<int64_t>{}) : run(Type<int32_t>{});
  });
  return y;
}

OPFORGE_IMPL(gather_rows, gather_rows_cuda)

}  // namespace opforge
