// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

#include <cmath>

namespace opforge {

Tensor kahan_sum_cpu(const Tensor& x) {
  OPFORGE_CHECK(x.dim() > 0, "kahan_sum: x has no rows");
  const Tensor y = empty(sizes(x).first(size_t(x.dim() - 1)), x);
  const MatrixView m = as_matrix(x);
  dispatch(dtype_of(x), [&]<class T>(Type<T>) {
    using A = compute_t<T>;
    const Matrix<const T> from = m.read<T>();
    for (int64_t row = 0; row < y.numel(); ++row) {
      A sum = 0, lost = 0, plain = 0;
      for (int64_t j = 0; j < m.cols; ++j) {
        const A term = widen(*from.at(row, j));
        const A corrected = term - lost, next = sum + corrected;
        lost = (next - sum) - corrected;
        sum = next;
        plain += term;
      }
      // Of infinite terms the correction is NaN: then the plain sum knows better.
      mutable_data<T>(y)[row] = narrow<T>(std::isfinite(sum) ? sum : plain);
    }
  });
  return y;
}

OPFORGE_IMPL(kahan_sum, kahan_sum_cpu)

}  // namespace opforge
