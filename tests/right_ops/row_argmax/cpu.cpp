// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

namespace opforge {

Tensor row_argmax_cpu(const Tensor& x) {
  OPFORGE_CHECK(x.dim() > 0 && sizes(x).back() > 0, "row_argmax: x needs rows");
  const Tensor index = empty(sizes(x).first(size_t(x.dim() - 1)), aoti_torch_dtype_int64(), x);
  const MatrixView m = as_matrix(x);
  dispatch(dtype_of(x), [&]<class T>(Type<T>) {
    const Matrix<const T> from = m.read<T>();
    for (int64_t row = 0; row < index.numel(); ++row) {
      int64_t best = 0;
      compute_t<T> most = widen(*from.at(row, 0));
      for (int64_t j = 1; j < m.cols && most == most; ++j) {  // the first NaN is the largest
        const compute_t<T> v = widen(*from.at(row, j));
        if (v > most || v != v) most = v, best = j;
      }
      mutable_data<int64_t>(index)[row] = best;
    }
  });
  return index;
}

OPFORGE_IMPL(row_argmax, row_argmax_cpu)

}  // namespace opforge
