// SPDX-License-Identifier: Apache-2.0
// What a softmax adds to x or hides of it. Includes no torch header.
#pragma once

#include <opforge/core/index.h>
#include <opforge/core/params.h>

namespace opforge {

// How many keys the query of a row sees, if the last two dims are queries and keys.
struct Causal {
  int64_t queries = 0;  // 0: all of them
  Divider<uint32_t> by_queries;
  bool many = false;  // more rows than 32 bits can count

  __device__ __forceinline__ int64_t visible(int64_t row, int64_t keys) const {
    if (queries == 0) return keys;
    const int64_t query =
        many ? row % queries : row - int64_t(by_queries.divide(uint32_t(row))) * queries;
    const int64_t seen = query + 1 + keys - queries;
    return seen < 0 ? 0 : seen;
  }
};

// What is added to x: in float or in the type of x, with any strides.
struct Mask {
  Param values;
  int64_t step = 0;  // from column to column
  Walk<uint32_t, 1> rows;

  __device__ __forceinline__ int64_t at(int64_t row) const {
    uint32_t inner;
    return rows.offset(0, uint32_t(row), inner);
  }

  template <class T, int N, class A>
  __device__ __forceinline__ void read_columns(int64_t at, int64_t col, A (&out)[N]) const {
    if (step == 1) return read<T>(values, at + col, out);
#pragma unroll
    for (int e = 0; e < N; ++e) {
      A one[1];
      read<T>(values, at + (col + e) * step, one);
      out[e] = one[0];
    }
  }
};

}  // namespace opforge
