// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

namespace opforge {

Tensor serial_sum_cpu(const Tensor& x) {
  OPFORGE_CHECK(x.dim() > 0, "serial_sum: x has no rows");
  const Tensor y = empty(sizes(x).first(size_t(x.dim() - 1)), x);
  const MatrixView m = as_matrix(x);
  dispatch(dtype_of(x), [&]<class T>(Type<T>) {
    const Matrix<const T> from = m.read<T>();
    for (int64_t row = 0; row < y.numel(); ++row) {
      compute_t<T> sum = 0;
      for (int64_t j = 0; j < m.cols; ++j) sum += widen(*from.at(row, j));
      mutable_data<T>(y)[row] = narrow<T>(sum);
    }
  });
  return y;
}

OPFORGE_IMPL(serial_sum, serial_sum_cpu)

}  // namespace opforge
