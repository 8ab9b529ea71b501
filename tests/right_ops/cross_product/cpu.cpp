// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

#include <cmath>

namespace opforge {

// a * b - c * d, with what the rounding of c * d took away put back (Kahan).
template <class A>
static A difference(A a, A b, A c, A d) {
  const A product = c * d, result = std::fma(a, b, -product), lost = std::fma(-c, d, product);
  if (!std::isfinite(result)) return a * b - product;
  return lost == 0 ? result : result + lost;  // -0.0 + 0.0 is 0.0
}

Tensor cross_product_cpu(const Tensor& a, const Tensor& b) {
  OPFORGE_CHECK(
      a.dim() > 0 && sizes(a).back() == 3 && same_shape(a, b) && dtype_code(a) == dtype_code(b),
      "cross_product: a and b have one shape and dtype, and 3 columns");
  const Tensor y = empty(sizes(a), a);
  if (y.numel() == 0) return y;
  const MatrixView left = as_matrix(a), right = as_matrix(b);
  dispatch(dtype_of(a), [&]<class T>(Type<T>) {
    const Matrix<const T> p = left.read<T>(), q = right.read<T>();
    T* out = mutable_data<T>(y);
    for (int64_t row = 0; row < left.rows; ++row) {
      for (int i = 0; i < 3; ++i) {
        const int j = (i + 1) % 3, k = (i + 2) % 3;
        *out++ = narrow<T>(difference<compute_t<T>>(widen(*p.at(row, j)), widen(*q.at(row, k)),
                                                    widen(*p.at(row, k)), widen(*q.at(row, j))));
      }
    }
  });
  return y;
}

OPFORGE_IMPL(cross_product, cross_product_cpu)

}  // namespace opforge
