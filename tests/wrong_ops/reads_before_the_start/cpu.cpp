// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

namespace opforge {

void double_row(const float* from, int64_t step, float* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    volatile float left = from[i * step - 1];  // wrong: the first one has none before it
    (void)left;
    to[i] = from[i * step] + from[i * step];
  }
}

Tensor reads_before_the_start_cpu(const Tensor& x) {
  OPFORGE_CHECK(x.dim() > 0 && dtype_code(x) == aoti_torch_dtype_float32(),
                "reads_before_the_start: x must be float32 and have a dimension");
  const Tensor y = empty(sizes(x), x);
  if (x.numel() == 0) return y;
  const MatrixView m = as_matrix(x);
  for (int64_t row = 0; row < m.rows; ++row) {
    double_row(m.read<float>().at(row, 0), m.col_stride, mutable_data<float>(y) + row * m.cols,
               m.cols);
  }
  return y;
}

OPFORGE_IMPL(reads_before_the_start, reads_before_the_start_cpu)

}  // namespace opforge
