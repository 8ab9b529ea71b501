// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

#include <cmath>

namespace opforge {

Tensor half_distances_cpu(const Tensor& a, const Tensor& b) {
  OPFORGE_CHECK(dtype_of(a) == DType::f16 && dtype_of(b) == DType::f16,
                "half_distances: a and b are float16");
  OPFORGE_CHECK(same_shape(a, b), "half_distances: a and b differ in shape");
  const Tensor y = empty(sizes(a), a);
  const auto run = [](const Layout<3>& layout, const Tensor& y, const Tensor& a, const Tensor& b) {
    for (int64_t i = 0, count = layout.count(); i < count; ++i) {
      int64_t at[3] = {}, rest = i;
      for (int d = 0; d < layout.rank; ++d) {
        const int64_t here = rest % layout.size[d];
        rest /= layout.size[d];
        for (int k = 0; k < 3; ++k) at[k] += here * layout.stride[k][d];
      }
      const float difference = widen(data<half>(a)[at[1]]) - widen(data<half>(b)[at[2]]);
      mutable_data<half>(y)[at[0]] = narrow<half>(std::fabs(difference));
    }
  };
  over_elements(y, run, a, b);
  return y;
}

OPFORGE_IMPL(half_distances, half_distances_cpu)

}  // namespace opforge
