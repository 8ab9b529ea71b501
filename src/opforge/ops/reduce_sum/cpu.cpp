// SPDX-License-Identifier: Apache-2.0
#include <opforge/cpu/sum.h>
#include <opforge/host.h>

namespace opforge {

Tensor reduce_sum_cpu(const Tensor& x, std::optional<std::vector<int64_t>> dim, bool keepdim) {
  const auto size = sizes(x);
  const int64_t rank = x.dim();
  const uint64_t named = named_dims(rank, dim);
  const auto reduced = [named](int64_t d) { return bool(named >> d & 1); };

  // One side of the loop has the kept dims, the other the reduced ones.
  std::vector<int64_t> shape, kept_size, kept_stride, terms_size, terms_stride;
  for (int64_t d = 0; d < rank; ++d) {
    (reduced(d) ? terms_size : kept_size).push_back(size[d]);
    (reduced(d) ? terms_stride : kept_stride).push_back(strides(x)[d]);
    if (keepdim || !reduced(d)) shape.push_back(reduced(d) ? 1 : size[d]);
  }
  const Tensor y = empty(shape, x);
  if (x.numel() == 0) {
    fill_zero(y);
    return y;
  }
  std::vector<int64_t> y_stride(kept_size.size());
  int64_t step = 1;
  for (size_t i = kept_size.size(); i-- > 0; step *= kept_size[i]) y_stride[i] = step;
  const auto kept = flatten<2>(kept_size, {kept_size, kept_size}, {kept_stride, y_stride});
  const auto terms = flatten<1>(terms_size, {terms_size}, {terms_stride});
  if (!kept.fits || !terms.fits) {
    // Too scattered: a copy in which the reduced dims are neighbours, and the kept ones too.
    std::vector<int64_t> dense(rank);
    step = 1;
    for (const bool side : {true, false}) {
      for (int64_t d = rank; d-- > 0;) {
        if (reduced(d) != side) continue;
        dense[d] = step;
        step *= size[d];
      }
    }
    const Tensor copy = empty_strided(size, dense, dtype_code(x), x);
    copy_into(copy, x);
    return reduce_sum_cpu(copy, dim, keepdim);
  }
  dispatch(dtype_of(x),
           [&]<class T>(Type<T>) { sum(data<T>(x), kept, terms, mutable_data<T>(y)); });
  return y;
}

OPFORGE_IMPL(reduce_sum, reduce_sum_cpu)

}  // namespace opforge
