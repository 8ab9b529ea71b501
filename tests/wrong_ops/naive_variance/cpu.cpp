// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

namespace opforge {

Tensor naive_variance_cpu(const Tensor& x) {
  OPFORGE_CHECK(x.dim() > 0, "naive_variance: x needs a dimension");
  const Tensor y = empty(sizes(x).first(size_t(x.dim() - 1)), x);
  if (y.numel() == 0) return y;
  const MatrixView m = as_matrix(x);
  dispatch(dtype_of(x), [&]<class T>(Type<T>) {
    T* const to = mutable_data<T>(y);
    for (int64_t row = 0; row < m.rows; ++row) {
      const T* const from = m.data<T>() + row * m.row_stride;
      compute_t<T> sum = 0, squares = 0;
      for (int64_t j = 0; j < m.cols; ++j) {
        const auto v = widen(from[j * m.col_stride]);
        sum += v;
        squares += v * v;
      }
      const auto n = compute_t<T>(m.cols), mean = sum / n;
      to[row] = narrow<T>(squares / n - mean * mean);  // wrong: the mean of (v - mean)^2
    }
  });
  return y;
}

OPFORGE_IMPL(naive_variance, naive_variance_cpu)

}  // namespace opforge
