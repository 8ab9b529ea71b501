// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

#include <algorithm>
#include <limits>

namespace opforge {

constexpr int64_t kWidth = 2048, kParts = 64;

Tensor row_max_cpu(const Tensor& x) {
  OPFORGE_CHECK(
      x.dim() == 2 && x.size(1) == kWidth && x.is_contiguous() && dtype_of(x) == DType::f32,
      "row_max: x must be contiguous rows of 2048 floats");
  const int64_t rows = x.size(0);
  const Tensor y = empty({&rows, 1}, x);
  const float* in = data<float>(x);
  float* out = mutable_data<float>(y);
  parallel_for(rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      // Independent maxima side by side: vectors, and several of them at once.
      float largest[kParts];
      std::fill_n(largest, kParts, -std::numeric_limits<float>::infinity());
      for (int64_t i = 0; i < kWidth; i += kParts) {
        const float* from = in + row * kWidth + i;
        for (int64_t j = 0; j < kParts; ++j) {
          largest[j] = from[j] > largest[j] ? from[j] : largest[j];
        }
      }
      out[row] = *std::max_element(largest, largest + kParts);
    }
  });
  return y;
}

OPFORGE_IMPL(row_max, row_max_cpu)

}  // namespace opforge
