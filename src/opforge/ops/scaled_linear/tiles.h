// SPDX-License-Identifier: Apache-2.0
// Which unit makes a product. Includes no torch header.
#pragma once

#include <opforge/families/product/choice.h>

#include "options.h"

namespace opforge {

using ScaledUnit = Unit<bool(const ProductCall&, const ScaledOptions&)>;

// call.dtype is that of the result. The units for E5M2 do nothing after the product.
inline bool run_product(const ProductCall& call, const ScaledOptions& options, bool e5m2,
                        bool fast_accum) {
  using Tile = ProductTile<ScaledOptions>;
  static ScaledUnit wide("wide"), medium("medium"), split("split"), fast_large("fast_large"),
      fast_pingpong("fast_pingpong"), float_medium("float_medium"), gradient_wide("gradient_wide"),
      gradient_medium("gradient_medium"), gradient_split("gradient_split");
  static const Tile precise[] = {
      {&medium, 256, 128, 2, 1, 1.0}, {&wide, 256, 256, 2, 1, 1.1}, {&split, 64, 128, 4, 4, 4.3}};
  static const Tile fast[] = {{&fast_large, 256, 256, 2, 1, 1.0},
                              {&fast_pingpong, 256, 128, 2, 1, 1.1}};
  static const Tile floats[] = {{&float_medium, 256, 128, 2, 1, 1.0}};
  static const Tile gradients[] = {{&gradient_wide, 256, 256, 2, 1, 1.0},
                                   {&gradient_medium, 256, 128, 2, 1, 1.1},
                                   {&gradient_split, 64, 128, 4, 4, 4.3}};
  std::span<const Tile> tiles = precise;
  if (fast_accum) tiles = fast;
  if (call.dtype == DType::f32) tiles = floats;
  if (e5m2) tiles = gradients;
  return run_chosen(tiles, call, options);
}

}  // namespace opforge
