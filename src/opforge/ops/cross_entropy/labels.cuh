// SPDX-License-Identifier: Apache-2.0
// The labels of cross_entropy, as the kernels read them.
#pragma once

#include <opforge/algorithms/rows.cuh>

namespace opforge {

struct Labels {
  Rows<const int64_t> rows;
  int64_t ignore_index, classes;

  __device__ __forceinline__ int64_t of(int64_t row) const { return *rows.at(row); }
  __device__ __forceinline__ bool ignored(int64_t label) const { return label == ignore_index; }
  __device__ __forceinline__ bool exists(int64_t label) const {
    return uint64_t(label) < uint64_t(classes);
  }
};

}  // namespace opforge
