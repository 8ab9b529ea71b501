// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

namespace opforge {

Tensor crashes_when_empty_cpu(const Tensor& x) {
  OPFORGE_CHECK(x.dim() > 0, "crashes_when_empty: x needs a dimension");
  const Tensor y = empty(sizes(x), x);
  const MatrixView m = as_matrix(x);
  dispatch(dtype_of(x), [&]<class T>(Type<T>) {
    for (int64_t row = 0; row < m.rows; ++row) {
      const T* const from = m.data<T>() + row * m.row_stride;
      T* const to = mutable_data<T>(y) + row * m.cols;
      to[0] = from[0];  // wrong: there may be none
      for (int64_t j = 1; j < m.cols; ++j) {
        to[j] = narrow<T>(widen(from[j * m.col_stride]) - widen(from[(j - 1) * m.col_stride]));
      }
    }
  });
  return y;
}

OPFORGE_IMPL(crashes_when_empty, crashes_when_empty_cpu)

}  // namespace opforge
