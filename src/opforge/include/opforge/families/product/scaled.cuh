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

}  // namespace opforge
