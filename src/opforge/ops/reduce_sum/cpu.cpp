// SPDX-License-Identifier: Apache-2.0
#include <opforge/cpu/sum.h>

#include "host.h"

namespace opforge {

Tensor reduce_sum_cpu(const Tensor& x, const std::optional<std::vector<int64_t>>& dim,
                      bool keepdim) {
  const uint64_t summed = named_dims(x.dim(), dim);
  const SplitDims dims = split_dims(x, summed, keepdim);
  const Tensor y = empty(dims.shape, x);
  if (x.numel() == 0) {
    fill_zero(y);
    return y;
  }
  Dims y_stride = dims.kept_size;
  int64_t step = 1;
  for (size_t i = y_stride.count; i-- > 0; step *= dims.kept_size.value[i])
    y_stride.value[i] = step;
  Tensor from = x;
  auto kept =
      flatten<2>(dims.kept_size, {dims.kept_size, dims.kept_size}, {dims.kept_stride, y_stride});
  auto terms = flatten<1>(dims.summed_size, {dims.summed_size}, {dims.summed_stride});
  if (!kept.fits || !terms.fits) {
    from = kept_dims_first(x, summed);
    const int64_t rows[1] = {y.numel()}, cols[1] = {x.numel() / y.numel()}, one[1] = {1};
    kept = flatten<2>(rows, {rows, rows}, {cols, one});
    terms = flatten<1>(cols, {cols}, {one});
  }
  dispatch(dtype_of(x),
           [&]<class T>(Type<T>) { sum(data<T>(from), kept, terms, mutable_data<T>(y)); });
  return y;
}

OPFORGE_IMPL(reduce_sum, reduce_sum_cpu)

}  // namespace opforge
