// SPDX-License-Identifier: Apache-2.0
// What the host sides of reduce_sum share on CPU and GPU: which dims of x are summed.
#pragma once

#include <opforge/host.h>

#include <vector>

namespace opforge {

// A number per dim, on the stack.
struct Dims {
  int64_t value[kMaxDims];
  size_t count = 0;

  void add(int64_t v) { value[count++] = v; }
  operator std::span<const int64_t>() const { return {value, count}; }
};

// The dims of x that stay, and those that are summed.
struct SplitDims {
  Dims shape;  // of the result
  Dims kept_size, kept_stride, summed_size, summed_stride;
};

// Bit d of `summed` is set if dim d is summed.
inline SplitDims split_dims(const Tensor& x, uint64_t summed, bool keepdim) {
  const auto size = sizes(x), stride = strides(x);
  SplitDims result;
  for (size_t d = 0; d < size.size(); ++d) {
    const bool sum = summed >> d & 1;
    (sum ? result.summed_size : result.kept_size).add(size[d]);
    (sum ? result.summed_stride : result.kept_stride).add(stride[d]);
    if (!sum || keepdim) result.shape.add(sum ? 1 : size[d]);
  }
  return result;
}

// A copy in which the dims that stay come before those that are summed: a matrix with a row for
// each result.
inline Tensor kept_dims_first(const Tensor& x, uint64_t summed) {
  std::vector<int64_t> order;
  for (const uint64_t wanted : {0, 1}) {
    for (int64_t d = 0; d < x.dim(); ++d) {
      if ((summed >> d & 1) == wanted) order.push_back(d);
    }
  }
  return contiguous(permute(x, order));
}

}  // namespace opforge
