// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

namespace opforge {

Tensor sums_in_half_cpu(const Tensor& x) {
  OPFORGE_CHECK(x.dim() > 0, "sums_in_half: x needs a dimension");
  const Tensor y = empty(sizes(x).first(size_t(x.dim() - 1)), x);
  if (y.numel() == 0) return y;
  const MatrixView m = as_matrix(x);
  dispatch(dtype_of(x), [&]<class T>(Type<T>) {
    T* const to = mutable_data<T>(y);
    for (int64_t row = 0; row < m.rows; ++row) {
      const T* const from = m.data<T>() + row * m.row_stride;
      double sum = 0;
      for (int64_t j = 0; j < m.cols; ++j) {
        sum += widen(from[j * m.col_stride]);
        // Wrong: a sum needs more bits than its terms.
        if constexpr (sizeof(T) == 2) sum = widen(narrow<T>(float(sum)));
      }
      to[row] = narrow<T>(compute_t<T>(sum));
    }
  });
  return y;
}

OPFORGE_IMPL(sums_in_half, sums_in_half_cpu)

}  // namespace opforge
