// SPDX-License-Identifier: Apache-2.0
// The shape of a strided loop over several operands, made as flat as their strides allow.
// Host code; includes no torch header.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <span>

namespace opforge {

// Torch allows 64 dimensions; more than eight rarely survive merging. Beyond that, copy first.
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

// Orders the dimensions by the strides of operand 0, drops those of size 1 and merges neighbours
// that all operands walk as one. Operands of a smaller rank or of size 1 are broadcast.
template <int N>
Layout<N> flatten(std::span<const int64_t> sizes,
                  const std::array<std::span<const int64_t>, N>& operand_sizes,
                  const std::array<std::span<const int64_t>, N>& operand_strides) {
  struct Dim {
    int64_t size;
    std::array<int64_t, N> stride;
  };
  Dim dims[64];
  int count = 0;
  const int rank = int(sizes.size());
  for (int d = rank - 1; d >= 0; --d) {  // innermost first
    if (sizes[d] == 1) continue;
    Dim dim{sizes[d], {}};
    for (int k = 0; k < N; ++k) {
      const int own = d - (rank - int(operand_sizes[k].size()));
      const bool broadcast = own < 0 || operand_sizes[k][own] == 1;
      dim.stride[k] = broadcast ? 0 : operand_strides[k][own];
    }
    dims[count++] = dim;
  }
  std::stable_sort(dims, dims + count, [](const Dim& a, const Dim& b) {
    return std::abs(a.stride[0]) < std::abs(b.stride[0]);
  });
  Layout<N> result;
  for (int d = 0; d < count; ++d) {
    bool merge = result.rank > 0;
    for (int k = 0; merge && k < N; ++k) {
      const int last = result.rank - 1;
      merge = dims[d].stride[k] == result.stride[k][last] * result.size[last];
    }
    if (merge) {
      result.size[result.rank - 1] *= dims[d].size;
      continue;
    }
    if (result.rank == kMaxRank) {
      result.fits = false;
      return result;
    }
    result.size[result.rank] = dims[d].size;
    for (int k = 0; k < N; ++k) result.stride[k][result.rank] = dims[d].stride[k];
    ++result.rank;
  }
  return result;
}

}  // namespace opforge
