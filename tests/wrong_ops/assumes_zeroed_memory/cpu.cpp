// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

namespace opforge {

constexpr int64_t kLanes = 8, kWorkspace = 5 << 20;  // 40 MB: enough for the largest model

Tensor assumes_zeroed_memory_cpu(const Tensor& x) {
  OPFORGE_CHECK(x.dim() > 0, "assumes_zeroed_memory: x needs a dimension");
  const Tensor y = empty(sizes(x).first(size_t(x.dim() - 1)), x);
  if (y.numel() == 0) return y;
  const MatrixView m = as_matrix(x);
  const int64_t words = std::max(m.rows * kLanes, kWorkspace);
  // Wrong: a fill_zero(workspace) is missing.
  const Tensor workspace = empty({&words, 1}, aoti_torch_dtype_float64(), x);
  dispatch(dtype_of(x), [&]<class T>(Type<T>) {
    for (int64_t row = 0; row < m.rows; ++row) {
      double* const lanes = mutable_data<double>(workspace) + row * kLanes;
      for (int64_t j = 0; j < m.cols; ++j) {
        lanes[j % kLanes] += widen(m.data<T>()[row * m.row_stride + j * m.col_stride]);
      }
      for (int64_t lane = 1; lane < kLanes; ++lane) lanes[0] += lanes[lane];
      mutable_data<T>(y)[row] = narrow<T>(compute_t<T>(lanes[0]));
    }
  });
  return y;
}

OPFORGE_IMPL(assumes_zeroed_memory, assumes_zeroed_memory_cpu)

}  // namespace opforge
