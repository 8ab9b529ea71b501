// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

namespace opforge {

Tensor strided_weight_misread_cpu(const Tensor& x, const Tensor& weight,
                                  const std::optional<Tensor>& bias) {
  const auto fits = [&](const Tensor& t) {
    return t.dim() == 1 && t.size(0) == sizes(x).back() && dtype_code(t) == dtype_code(x);
  };
  OPFORGE_CHECK(x.dim() > 0 && fits(weight) && (!bias || fits(*bias)),
                "strided_weight_misread: weight and bias hold one value per column of x");
  const Tensor y = empty(sizes(x), x);
  if (x.numel() == 0) return y;
  const MatrixView m = as_matrix(x);
  dispatch(dtype_of(x), [&]<class T>(Type<T>) {
    for (int64_t row = 0; row < m.rows; ++row) {
      for (int64_t j = 0; j < m.cols; ++j) {
        auto value = widen(m.data<T>()[row * m.row_stride + j * m.col_stride]);
        value *= widen(data<T>(weight)[j]);  // wrong: j * weight.stride(0)
        if (bias) value += widen(data<T>(*bias)[j * bias->stride(0)]);
        mutable_data<T>(y)[row * m.cols + j] = narrow<T>(value);
      }
    }
  });
  return y;
}

OPFORGE_IMPL(strided_weight_misread, strided_weight_misread_cpu)

}  // namespace opforge
