// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

namespace opforge {

Tensor dtype_not_promised_cpu(const Tensor& x) {
  OPFORGE_CHECK(x.dim() > 0, "dtype_not_promised: x needs a dimension");
  // Wrong: the result has the dtype of x.
  const Tensor y = empty(sizes(x).first(size_t(x.dim() - 1)), accumulator_dtype(x), x);
  if (y.numel() == 0) return y;
  const MatrixView m = as_matrix(x);
  dispatch(dtype_of(x), [&]<class T>(Type<T>) {
    for (int64_t row = 0; row < m.rows; ++row) {
      const T* const from = m.data<T>() + row * m.row_stride;
      double sum = 0;
      for (int64_t j = 0; j < m.cols; ++j) sum += widen(from[j * m.col_stride]);
      mutable_data<compute_t<T>>(y)[row] = compute_t<T>(sum);
    }
  });
  return y;
}

OPFORGE_IMPL(dtype_not_promised, dtype_not_promised_cpu)

}  // namespace opforge
