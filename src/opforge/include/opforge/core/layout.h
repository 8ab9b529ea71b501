// SPDX-License-Identifier: Apache-2.0
// The shape of a strided loop over several operands, made as flat as their strides allow.
// Host code; includes no torch header.
#pragma once

#include <opforge/core/types.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <span>

namespace opforge {

OPFORGE_HOST_DEVICE constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

constexpr int kMaxDims = 64;  // of a tensor

// More than eight dimensions rarely survive merging. Beyond that, copy first.
constexpr int kMaxRank = 8;

// Dimension 0 is the innermost. Strides are in elements.
template <int N>
struct Layout {
  int rank = 0;
  int64_t size[kMaxRank] = {};
  int64_t stride[N][kMaxRank] = {};
  bool fits = true;  // false: more than kMaxRank dimensions are left

  int64_t count() const {
    int64_t n = 1;
    for (int d = 0; d < rank; ++d) n *= size[d];
    return n;
  }
};

namespace detail {

template <int N>
struct Dim {
  int64_t size;
  std::array<int64_t, N> stride;
};

// Merges neighbours (innermost first) that all operands walk as one.
template <int N>
Layout<N> merge(std::span<const Dim<N>> dims) {
  Layout<N> result;
  for (const Dim<N>& dim : dims) {
    const int last = result.rank - 1;
    bool same = result.rank > 0;
    for (int k = 0; same && k < N; ++k) {
      same = dim.stride[k] == result.stride[k][last] * result.size[last];
    }
    if (same) {
      result.size[last] *= dim.size;
      continue;
    }
    if (result.rank == kMaxRank) {
      result.fits = false;
      return result;
    }
    result.size[result.rank] = dim.size;
    for (int k = 0; k < N; ++k) result.stride[k][result.rank] = dim.stride[k];
    ++result.rank;
  }
  return result;
}

}  // namespace detail

// Orders the dimensions by the strides of operand 0, drops those of size 1 and merges what it can.
// Operands of a smaller rank or of size 1 are broadcast.
template <int N>
Layout<N> flatten(std::span<const int64_t> sizes,
                  const std::array<std::span<const int64_t>, N>& operand_sizes,
                  const std::array<std::span<const int64_t>, N>& operand_strides) {
  detail::Dim<N> dims[kMaxDims];
  int count = 0;
  const int rank = int(sizes.size());
  for (int d = rank - 1; d >= 0; --d) {  // innermost first
    if (sizes[d] == 1) continue;
    dims[count].size = sizes[d];
    for (int k = 0; k < N; ++k) {
      const int own = d - (rank - int(operand_sizes[k].size()));
      const bool broadcast = own < 0 || operand_sizes[k][own] == 1;
      dims[count].stride[k] = broadcast ? 0 : operand_strides[k][own];
    }
    ++count;
  }
  std::stable_sort(dims, dims + count, [](const auto& a, const auto& b) {
    return std::abs(a.stride[0]) < std::abs(b.stride[0]);
  });
  return detail::merge<N>({dims, size_t(count)});
}

// The same for one operand whose dimensions must keep their order.
inline Layout<1> flatten_in_order(std::span<const int64_t> sizes,
                                  std::span<const int64_t> strides) {
  detail::Dim<1> dims[kMaxDims];
  int count = 0;
  for (size_t d = sizes.size(); d-- > 0;) {
    if (sizes[d] != 1) dims[count++] = {sizes[d], {strides[d]}};
  }
  return detail::merge<1>({dims, size_t(count)});
}

// A matrix in memory. Strides are in elements.
template <class T>
struct Matrix {
  T* data;
  int64_t row_stride, col_stride;

  OPFORGE_HOST_DEVICE T* at(int64_t row, int64_t col) const {
    return data + row * row_stride + col * col_stride;
  }
};

}  // namespace opforge
