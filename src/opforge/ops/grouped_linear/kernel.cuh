// SPDX-License-Identifier: Apache-2.0
// The units of grouped_linear: families/product/hopper.cuh with one tile and one pair of majors
// each. Bytes: rows, weights and results once, if L2 holds what neighbouring tiles share.
// Operations: 2 n k for each row of a group, more where a group is no multiple of the tile.
#pragma once

#include <opforge/core/unit.h>
#include <opforge/families/product/choice.h>

#include <opforge/families/product/groups.cuh>
#include <opforge/families/product/hopper_launch.cuh>

namespace opforge {

// y = a b + bias.
template <class Out_>
struct BiasEpilogue {
  using Out = Out_;
  static constexpr int kParts = 1, kIn = 0, kOut = 1, kColumns = 1;
  static constexpr bool kSums = false;

  template <class P, class F>
  __device__ __forceinline__ void choose(const P& p, const F& f) const {
    f([]<int N>(const float (&product)[1][N], const float (&)[1][N], const float (&columns)[1][N],
                float (&out)[1][N]) {
#pragma unroll
      for (int v = 0; v < N; ++v) out[0][v] = product[0][v] + columns[0][v];
    });
  }
};

template <class T, Groups groups, class Tile, Major a, Major b>
bool run_groups(const ProductCall& call, const NoOptions&) {
  return run_hopper<HopperProduct<T, Tile, a, b, BiasEpilogue<T>, groups>>(call, {});
}

template <Groups groups, class Tile, Major a, Major b>
bool run_short_groups(const ProductCall& call, const NoOptions& none) {
  if (call.dtype == DType::f16) return run_groups<half, groups, Tile, a, b>(call, none);
  return run_groups<bfloat16, groups, Tile, a, b>(call, none);
}

}  // namespace opforge
