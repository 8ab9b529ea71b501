// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

namespace opforge {

Tensor gather_rows_cpu(const Tensor& table, const Tensor& index) {
  const bool wide = dtype_code(index) == aoti_torch_dtype_int64();
  OPFORGE_CHECK(wide || dtype_code(index) == aoti_torch_dtype_int32(),
                "gather_rows: index is int32 or int64");
  OPFORGE_CHECK(table.dim() == 2 && index.dim() == 1,
                "gather_rows: table is a matrix and index a vector");
  const int64_t count = index.size(0), rows = table.size(0), cols = table.size(1);
  const int64_t shape[] = {count, cols};
  const Tensor y = empty(shape, table);
  dispatch(dtype_of(table), [&]<class T>(Type<T>) {
    T* out = mutable_data<T>(y);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t at = i * index.stride(0);
      const int64_t chosen = wide ? data<int64_t>(index)[at] : data<int32_t>(index)[at];
      const bool valid = chosen >= 0 && chosen < rows;
      for (int64_t j = 0; j < cols; ++j) {
        const int64_t from = chosen * table.stride(0) + j * table.stride(1);
        *out++ = valid ? data<T>(table)[from] : narrow<T>(compute_t<T>(0));
      }
    }
  });
  return y;
}

OPFORGE_IMPL(gather_rows, gather_rows_cpu)

}  // namespace opforge
