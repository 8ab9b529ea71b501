// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

namespace opforge {

template <class Byte>
static void convert(const Tensor& x, const Tensor& y, float scale, float zero) {
  const auto run = [=](const Layout<2>& layout, const Tensor& y, const Tensor& x) {
    for (int64_t i = 0, count = layout.count(); i < count; ++i) {
      int64_t to = 0, from = 0, rest = i;
      for (int d = 0; d < layout.rank; ++d) {
        const int64_t here = rest % layout.size[d];
        rest /= layout.size[d];
        to += here * layout.stride[0][d];
        from += here * layout.stride[1][d];
      }
      mutable_data<float>(y)[to] = (float(data<Byte>(x)[from]) - zero) * scale;
    }
  };
  over_elements(y, run, x);
}

Tensor dequantize_cpu(const Tensor& x, double scale, int64_t zero) {
  const int32_t code = dtype_code(x);
  const bool is_signed = code == aoti_torch_dtype_int8();
  OPFORGE_CHECK(is_signed || code == aoti_torch_dtype_uint8(), "dequantize: x holds bytes");
  OPFORGE_CHECK(zero >= 0 && zero <= 255, "dequantize: zero is no byte");
  const Tensor y = empty(sizes(x), aoti_torch_dtype_float32(), x);
  (is_signed ? convert<int8_t> : convert<uint8_t>)(x, y, float(scale), float(zero));
  return y;
}

OPFORGE_IMPL(dequantize, dequantize_cpu)

}  // namespace opforge
