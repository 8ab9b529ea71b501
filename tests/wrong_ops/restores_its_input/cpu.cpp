// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

namespace opforge {

void negate(volatile float* row, int64_t step, float* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    row[i * step] = -row[i * step];  // wrong: x is not ours
    to[i] = row[i * step];
    row[i * step] = -row[i * step];
  }
}

Tensor restores_its_input_cpu(const Tensor& x) {
  OPFORGE_CHECK(x.dim() > 0 && dtype_code(x) == aoti_torch_dtype_float32(),
                "restores_its_input: x must be float32 and have a dimension");
  const Tensor y = empty(sizes(x), x);
  if (x.numel() == 0) return y;
  const MatrixView m = as_matrix(x);
  for (int64_t row = 0; row < m.rows; ++row) {
    negate(const_cast<float*>(m.read<float>().at(row, 0)), m.col_stride,
           mutable_data<float>(y) + row * m.cols, m.cols);
  }
  return y;
}

OPFORGE_IMPL(restores_its_input, restores_its_input_cpu)

}  // namespace opforge
