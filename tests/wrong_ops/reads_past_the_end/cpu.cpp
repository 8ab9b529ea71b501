// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

namespace opforge {

void double_row(const float* from, int64_t step, float* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const float value = from[i * step];
    volatile float second = from[i * step + 1];  // wrong: the last one has none after it
    (void)second;
    to[i] = value + value;
  }
}

Tensor reads_past_the_end_cpu(const Tensor& x) {
  OPFORGE_CHECK(x.dim() > 0 && dtype_code(x) == aoti_torch_dtype_float32(),
                "reads_past_the_end: x must be float32 and have a dimension");
  const Tensor y = empty(sizes(x), x);
  if (x.numel() == 0) return y;
  const MatrixView m = as_matrix(x);
  for (int64_t row = 0; row < m.rows; ++row) {
    double_row(m.read<float>().at(row, 0), m.col_stride, mutable_data<float>(y) + row * m.cols,
               m.cols);
  }
  return y;
}

OPFORGE_IMPL(reads_past_the_end, reads_past_the_end_cpu)

}  // namespace opforge
