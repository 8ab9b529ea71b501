// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

#include <cmath>

namespace opforge {

template <class A>
struct Running {
  A peak = -INFINITY, sum = 0;  // of exp(x - peak)

  void add(A x) {
    if (x > peak) {
      sum = sum * std::exp(peak - x) + 1;
      peak = x;
    } else if (x != -INFINITY) {
      sum += x == peak ? A(1) : std::exp(x - peak);  // inf - inf is NaN; a NaN stays one
    }
  }
};

Tensor online_logsumexp_cpu(const Tensor& x) {
  OPFORGE_CHECK(x.dim() > 0 && sizes(x).back() > 0, "online_logsumexp: x needs rows");
  const Tensor y = empty(sizes(x).first(size_t(x.dim() - 1)), x);
  const MatrixView m = as_matrix(x);
  dispatch(dtype_of(x), [&]<class T>(Type<T>) {
    using A = compute_t<T>;
    const Matrix<const T> from = m.read<T>();
    for (int64_t row = 0; row < y.numel(); ++row) {
      Running<A> total;
      for (int64_t j = 0; j < m.cols; ++j) total.add(widen(*from.at(row, j)));
      mutable_data<T>(y)[row] = narrow<T>(total.peak + std::log(total.sum));
    }
  });
  return y;
}

OPFORGE_IMPL(online_logsumexp, online_logsumexp_cpu)

}  // namespace opforge
