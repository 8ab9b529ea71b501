// SPDX-License-Identifier: Apache-2.0
// A tensor seen as outer x length x inner: the dims before one, that dim, and the dims after it.
#pragma once

#include <opforge/host.h>

namespace opforge {

struct SplitView {
  Tensor tensor;  // the tensor itself, or a copy where its strides do not merge
  int64_t outer = 1, length = 1, inner = 1;
  int64_t outer_stride = 0, length_stride = 0;  // neighbours of the innermost dim are adjacent
};

namespace detail {

// Merges dims [first, last) into one; false where they have no common stride.
inline bool merge_dims(const Tensor& x, size_t first, size_t last, int64_t& count,
                       int64_t& stride) {
  for (size_t d = last; d-- > first;) {
    const int64_t size = sizes(x)[d], step = strides(x)[d];
    if (size == 1) continue;
    if (count == 1) {
      stride = step;
    } else if (step != stride * count) {
      return false;
    }
    count *= size;
  }
  return true;
}

}  // namespace detail

// A scalar counts as one dim of size 1. The tensor is not empty.
inline SplitView split_at(const Tensor& x, int64_t dim) {
  SplitView s{x};
  const size_t rank = sizes(x).size(), d = size_t(dim);
  if (rank == 0) return s;
  int64_t inner_stride = 1;
  const bool merged = detail::merge_dims(x, 0, d, s.outer, s.outer_stride) &&
                      detail::merge_dims(x, d, d + 1, s.length, s.length_stride) &&
                      detail::merge_dims(x, d + 1, rank, s.inner, inner_stride);
  const bool adjacent = s.inner > 1 ? inner_stride == 1 : s.length == 1 || s.length_stride == 1;
  if (merged && adjacent) return s;
  return split_at(contiguous(x), dim);
}

}  // namespace opforge
