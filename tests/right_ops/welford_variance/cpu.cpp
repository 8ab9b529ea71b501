// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

namespace opforge {

Tensor welford_variance_cpu(const Tensor& x) {
  OPFORGE_CHECK(x.dim() > 0 && sizes(x).back() > 0, "welford_variance: x needs rows");
  const Tensor y = empty(sizes(x).first(size_t(x.dim() - 1)), x);
  const MatrixView m = as_matrix(x);
  dispatch(dtype_of(x), [&]<class T>(Type<T>) {
    using A = compute_t<T>;
    const Matrix<const T> from = m.read<T>();
    for (int64_t row = 0; row < y.numel(); ++row) {
      A mean = 0, squares = 0;  // of the distances to the mean
      for (int64_t j = 0; j < m.cols; ++j) {
        const A v = widen(*from.at(row, j)), away = v - mean;
        mean += away / A(j + 1);
        squares += away * (v - mean);
      }
      mutable_data<T>(y)[row] = narrow<T>(squares / A(m.cols));
    }
  });
  return y;
}

OPFORGE_IMPL(welford_variance, welford_variance_cpu)

}  // namespace opforge
