// SPDX-License-Identifier: Apache-2.0
// Epilogues of products of scaled numbers (FP8): the sums are multiplied by a factor per row and one
// per column, the last of the epilogue's columns. Includes no torch header.
#pragma once

#include <opforge/families/product/epilogue.cuh>

namespace opforge {

// y = a b with both factors.
template <class Out_>
struct ScaledEpilogue {
  using Out = Out_;
  static constexpr int kParts = 1, kIn = 0, kOut = 1, kColumns = 1;
  static constexpr bool kSums = false, kScalesRows = true;

  template <class F>
  __device__ __forceinline__ void choose(const F& f) const {
    f([]<int N, int In>(const float (&product)[1][N], const float (&)[In][N],
                        const float (&columns)[1][N], float (&out)[1][N]) {
#pragma unroll
      for (int v = 0; v < N; ++v) out[0][v] = product[0][v] * columns[0][v];
    });
  }
};

// All that linear does after the product, of the scaled one.
template <class Out_>
struct ScaledLinearEpilogue {
  using Out = Out_;
  using Linear = LinearEpilogue<Out>;
  static constexpr int kParts = 1, kIn = Linear::kIn, kOut = Linear::kOut, kColumns = 2;
  static constexpr bool kSums = false, kScalesRows = true;
  Linear linear;

  template <class F>
  __device__ __forceinline__ void choose(const F& f) const {
    linear.choose([&](const auto& transform) {
      f([&]<int N>(const float (&product)[1][N], const float (&in)[1][N],
                   const float (&columns)[2][N], float (&out)[2][N]) {
        float scaled[1][N], bias[1][N];
#pragma unroll
        for (int v = 0; v < N; ++v) {
          scaled[0][v] = product[0][v] * columns[1][v];
          bias[0][v] = columns[0][v];
        }
        transform(scaled, in, bias, out);
      });
    });
  }
};

}  // namespace opforge
