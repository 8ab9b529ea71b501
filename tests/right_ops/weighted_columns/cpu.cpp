// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

namespace opforge {

// One value per column; without a tensor, or where it is not there, `otherwise`.
template <class T>
struct Columns {
  const T* values = nullptr;
  int64_t step = 0;
  compute_t<T> otherwise;

  Columns(const std::optional<Tensor>& given, double otherwise) : otherwise(otherwise) {
    if (given) values = data<T>(*given), step = given->stride(0);
  }
  compute_t<T> operator[](int64_t j) const { return values ? widen(values[j * step]) : otherwise; }
};

Tensor weighted_columns_cpu(const Tensor& x, const std::optional<Tensor>& weight,
                            const std::optional<Tensor>& bias) {
  OPFORGE_CHECK(x.dim() > 0, "weighted_columns: x has no columns");
  for (const auto& given : {weight, bias}) {
    OPFORGE_CHECK(!given || (given->dim() == 1 && given->size(0) == sizes(x).back() &&
                             dtype_code(*given) == dtype_code(x)),
                  "weighted_columns: weight and bias have a value for each column of x");
  }
  const Tensor y = empty(sizes(x), x);
  if (y.numel() == 0) return y;
  const MatrixView m = as_matrix(x);
  dispatch(dtype_of(x), [&]<class T>(Type<T>) {
    const Matrix<const T> from = m.read<T>();
    const Columns<T> factor(weight, 1.0), added(bias, -0.0);  // x + -0.0 is x, also for -0.0
    T* out = mutable_data<T>(y);
    for (int64_t row = 0; row < m.rows; ++row) {
      for (int64_t j = 0; j < m.cols; ++j) {
        *out++ = narrow<T>(widen(*from.at(row, j)) * factor[j] + added[j]);
      }
    }
  });
  return y;
}

OPFORGE_IMPL(weighted_columns, weighted_columns_cpu)

}  // namespace opforge
