// SPDX-License-Identifier: Apache-2.0
// From a flat index to a strided offset. 32-bit indices divide by multiplication; 64-bit ones,
// needed beyond 2^31 elements only, divide plainly. Includes no torch header.
#pragma once

#include <cuda_runtime.h>
#include <opforge/core/layout.h>
#include <opforge/core/types.h>

namespace opforge {

template <class Index>
struct Divider;

// Division by a number known at launch: n / d = (mulhi(n, m) + n) >> s for n < 2^31.
template <>
struct Divider<uint32_t> {
  uint32_t divisor = 1, multiplier = 1, shift = 0;

  Divider() = default;
  explicit Divider(int64_t d) : divisor(uint32_t(d)) {
    while ((uint64_t(1) << shift) < divisor) ++shift;
    multiplier = uint32_t(((uint64_t(1) << 32) * ((uint64_t(1) << shift) - divisor)) / divisor + 1);
  }
  __device__ __forceinline__ uint32_t divide(uint32_t n) const {
    return (__umulhi(n, multiplier) + n) >> shift;
  }
};

template <>
struct Divider<uint64_t> {
  uint64_t divisor = 1;

  Divider() = default;
  explicit Divider(int64_t d) : divisor(uint64_t(d)) {}
  // unreached: only tensors of 2^31 elements are indexed so, which a GPU checks
  __device__ __forceinline__ uint64_t divide(uint64_t n) const { return n / divisor; }
};

// The dimensions of a loop over N operands, for the device.
template <class Index, int N>
struct Walk {
  int rank = 0;
  Divider<Index> size[kMaxRank];
  int64_t stride[N][kMaxRank] = {};

  Walk() = default;
  explicit Walk(const Layout<N>& layout) : rank(layout.rank) {
    for (int d = 0; d < rank; ++d) {
      size[d] = Divider<Index>(layout.size[d]);
      for (int k = 0; k < N; ++k) stride[k][d] = layout.stride[k][d];
    }
  }

  // The offset of operand k at flat index i; `inner` is the position within dimension 0.
  __device__ __forceinline__ int64_t offset(int k, Index i, Index& inner) const {
    inner = i;
    if (rank <= 1) return rank == 0 ? 0 : int64_t(i) * stride[k][0];
    Index rest = size[0].divide(i);
    inner = i - rest * size[0].divisor;
    int64_t result = int64_t(inner) * stride[k][0];
    for (int d = 1; d + 1 < rank; ++d) {
      const Index next = size[d].divide(rest);
      result += int64_t(rest - next * size[d].divisor) * stride[k][d];
      rest = next;
    }
    return result + int64_t(rest) * stride[k][rank - 1];
  }
};

}  // namespace opforge
