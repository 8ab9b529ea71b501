// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

namespace opforge {

constexpr int64_t kSums = 64;

float sum_row(const float* from, int64_t step, int64_t n, float* sums) {
  for (int64_t i = 0; i <= kSums; ++i) sums[i] = 0;  // wrong: <
  for (int64_t i = 0; i < n; ++i) sums[i % kSums] += from[i * step];
  float total = 0;
  for (int64_t i = 0; i < kSums; ++i) total += sums[i];
  return total;
}

Tensor writes_past_the_end_cpu(const Tensor& x) {
  OPFORGE_CHECK(x.dim() > 0 && dtype_code(x) == aoti_torch_dtype_float32(),
                "writes_past_the_end: x must be float32 and have a dimension");
  const Tensor y = empty(sizes(x).first(sizes(x).size() - 1), x);
  if (y.numel() == 0) return y;
  const int64_t size[] = {kSums};
  const Tensor sums = empty(size, x);
  const MatrixView m = as_matrix(x);
  for (int64_t row = 0; row < y.numel(); ++row) {
    mutable_data<float>(y)[row] =
        sum_row(m.read<float>().at(row, 0), m.col_stride, m.cols, mutable_data<float>(sums));
  }
  return y;
}

OPFORGE_IMPL(writes_past_the_end, writes_past_the_end_cpu)

}  // namespace opforge
