// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

namespace opforge {

template <class Real>
struct Pair {
  Real re, im;
};

template <class Real>
static void dots(const MatrixView& a, const MatrixView& b, const Tensor& y) {
  const Matrix<const Pair<Real>> left = a.read<Pair<Real>>(), right = b.read<Pair<Real>>();
  for (int64_t row = 0; row < y.numel(); ++row) {
    Pair<Real> sum{0, 0};
    for (int64_t j = 0; j < a.cols; ++j) {
      const Pair<Real> p = *left.at(row, j), q = *right.at(row, j);
      sum.re += p.re * q.re + p.im * q.im;
      sum.im += p.im * q.re - p.re * q.im;
    }
    mutable_data<Pair<Real>>(y)[row] = sum;
  }
}

Tensor conjugate_dots_cpu(const Tensor& a, const Tensor& b) {
  const int32_t code = dtype_code(a);
  const bool wide = code == aoti_torch_dtype_complex128();
  OPFORGE_CHECK((wide || code == aoti_torch_dtype_complex64()) && dtype_code(b) == code,
                "conjugate_dots: a and b are complex, of one dtype");
  OPFORGE_CHECK(a.dim() > 0 && same_shape(a, b),
                "conjugate_dots: a and b have rows, and one shape");
  const Tensor y = empty(sizes(a).first(size_t(a.dim() - 1)), a);
  const MatrixView left = as_matrix(a), right = as_matrix(b);
  wide ? dots<double>(left, right, y) : dots<float>(left, right, y);
  return y;
}

OPFORGE_IMPL(conjugate_dots, conjugate_dots_cpu)

}  // namespace opforge
