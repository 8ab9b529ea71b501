// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

namespace opforge {

Tensor label_clamped_cpu(const Tensor& x, const Tensor& label) {
  OPFORGE_CHECK(x.dim() == 2 && label.dim() == 1 && label.size(0) == x.size(0) &&
                    dtype_code(label) == aoti_torch_dtype_int64(),
                "label_clamped: label must hold one class per row of x, as int64");
  const Tensor y = empty(sizes(label), x);
  OPFORGE_CHECK(y.numel() == 0 || x.size(1) > 0, "label_clamped: x has no classes");
  dispatch(dtype_of(x), [&]<class T>(Type<T>) {
    for (int64_t row = 0; row < y.numel(); ++row) {
      const int64_t named = data<int64_t>(label)[row * label.stride(0)];
      const int64_t c = std::clamp<int64_t>(named, 0, x.size(1) - 1);  // wrong: refuse it
      mutable_data<T>(y)[row] = data<T>(x)[row * x.stride(0) + c * x.stride(1)];
    }
  });
  return y;
}

OPFORGE_IMPL(label_clamped, label_clamped_cpu)

}  // namespace opforge
