// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

namespace opforge {

void double_all(const float* from, float* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const float value = from[i];
    volatile float second = from[i + 1];  // wrong: the last one has none after it
    (void)second;
    to[i] = value + value;
  }
}

Tensor reads_past_its_workspace_cpu(const Tensor& x) {
  OPFORGE_CHECK(x.dim() > 0 && dtype_code(x) == aoti_torch_dtype_float32(),
                "reads_past_its_workspace: x must be float32 and have a dimension");
  const Tensor y = empty(sizes(x), x);
  if (x.numel() == 0) return y;
  const MatrixView m = as_matrix(x);
  const Tensor workspace = empty(sizes(x), x);
  float* const copy = mutable_data<float>(workspace);
  for (int64_t i = 0; i < x.numel(); ++i) {
    copy[i] = *m.read<float>().at(i / m.cols, i % m.cols);
  }
  double_all(copy, mutable_data<float>(y), x.numel());
  return y;
}

OPFORGE_IMPL(reads_past_its_workspace, reads_past_its_workspace_cpu)

}  // namespace opforge
