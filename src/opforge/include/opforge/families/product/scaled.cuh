// SPDX-License-Identifier: Apache-2.0
// Epilogues of products of scaled numbers (FP8). Includes no torch header.
#pragma once

#include <opforge/families/product/epilogue.cuh>

namespace opforge {

// Another epilogue, which gets the sums multiplied by a factor per row and one per column. The
// latter come after the values per column of that epilogue.
template <class Epilogue>
struct Scaled : Epilogue {
  static constexpr int kColumns = Epilogue::kColumns + 1;
  static constexpr bool kScales = true;
};

// y = a b
template <class Out_>
struct CopyEpilogue {
  using Out = Out_;
  static constexpr int kParts = 1, kIn = 0, kOut = 1, kColumns = 0;
  static constexpr bool kSums = false;

  template <class P, class F>
  __device__ __forceinline__ void choose(const P& p, const F& f) const {
    const auto copy = []<int N, int In, int Columns>(
                          const float (&product)[1][N], const float (&)[In][N],
                          const float (&)[Columns][N], float (&out)[1][N]) {
#pragma unroll
      for (int v = 0; v < N; ++v) out[0][v] = product[0][v];
    };
    p.plain ? f(copy) : f(with_known<0, 1>(copy));
  }
};

}  // namespace opforge
