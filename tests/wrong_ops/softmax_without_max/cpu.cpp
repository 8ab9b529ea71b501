// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

#include <cmath>

namespace opforge {

Tensor softmax_without_max_cpu(const Tensor& x) {
  OPFORGE_CHECK(x.dim() > 0, "softmax_without_max: x needs a dimension");
  const Tensor y = empty(sizes(x), x);
  if (x.numel() == 0) return y;
  const MatrixView m = as_matrix(x);
  dispatch(dtype_of(x), [&]<class T>(Type<T>) {
    T* const to = mutable_data<T>(y);
    for (int64_t row = 0; row < m.rows; ++row) {
      const T* const from = m.data<T>() + row * m.row_stride;
      double sum = 0;
      for (int64_t j = 0; j < m.cols; ++j) sum += std::exp(widen(from[j * m.col_stride]));
      for (int64_t j = 0; j < m.cols; ++j) {
        const auto e = std::exp(widen(from[j * m.col_stride]));  // wrong: minus the largest
        to[row * m.cols + j] = narrow<T>(compute_t<T>(e / sum));
      }
    }
  });
  return y;
}

OPFORGE_IMPL(softmax_without_max, softmax_without_max_cpu)

}  // namespace opforge
