// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

#include <cmath>

namespace opforge {

Tensor masked_row_is_nan_cpu(const Tensor& x) {
  OPFORGE_CHECK(x.dim() > 0, "masked_row_is_nan: x needs a dimension");
  const Tensor y = empty(sizes(x), x);
  if (x.numel() == 0) return y;
  const MatrixView m = as_matrix(x);
  dispatch(dtype_of(x), [&]<class T>(Type<T>) {
    T* const to = mutable_data<T>(y);
    for (int64_t row = 0; row < m.rows; ++row) {
      const T* const from = m.data<T>() + row * m.row_stride;
      double largest = -INFINITY, sum = 0;
      for (int64_t j = 0; j < m.cols; ++j) {
        const double v = widen(from[j * m.col_stride]);
        if (!(v <= largest)) largest = v;
      }
      // Wrong: if all of them are -inf, so is the largest.
      const auto e = [&](int64_t j) { return std::exp(widen(from[j * m.col_stride]) - largest); };
      for (int64_t j = 0; j < m.cols; ++j) sum += e(j);
      for (int64_t j = 0; j < m.cols; ++j) {
        to[row * m.cols + j] = narrow<T>(compute_t<T>(e(j) / sum));
      }
    }
  });
  return y;
}

OPFORGE_IMPL(masked_row_is_nan, masked_row_is_nan_cpu)

}  // namespace opforge
