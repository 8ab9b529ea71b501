// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

namespace opforge {

Tensor scalar_error_says_nothing_cpu(const Tensor& x) {
  OPFORGE_CHECK(x.dim() > 0, "invalid argument");  // wrong: which, and what is valid?
  const Tensor y = empty(sizes(x).first(size_t(x.dim() - 1)), x);
  if (y.numel() == 0) return y;
  const MatrixView m = as_matrix(x);
  dispatch(dtype_of(x), [&]<class T>(Type<T>) {
    for (int64_t row = 0; row < m.rows; ++row) {
      double sum = 0;
      for (int64_t j = 0; j < m.cols; ++j) {
        sum += widen(m.data<T>()[row * m.row_stride + j * m.col_stride]);
      }
      mutable_data<T>(y)[row] = narrow<T>(compute_t<T>(sum));
    }
  });
  return y;
}

OPFORGE_IMPL(scalar_error_says_nothing, scalar_error_says_nothing_cpu)

}  // namespace opforge
