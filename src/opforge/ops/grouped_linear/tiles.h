// SPDX-License-Identifier: Apache-2.0
// Which unit makes the products of groups. Includes no torch header.
#pragma once

#include <opforge/families/product/choice.h>

namespace opforge {

using GroupedUnit = Unit<bool(const ProductCall&, const NoOptions&)>;
using GroupedTile = ProductTile<NoOptions>;

// Rows of groups times a matrix each.
inline bool run_row_groups(const ProductCall& call) {
  static GroupedUnit ii_large("ii_large"), ii_pingpong("ii_pingpong"), ii_short("ii_short"),
      io_large("io_large"), io_pingpong("io_pingpong"), io_short("io_short"),
      tf32_rows("tf32_rows");
  // By the major of b: inner or outer.
  static const GroupedTile tf32[] = {{&tf32_rows, 128, 256, 2, 1, 1.0}};
  static const GroupedTile ii[] = {{&ii_large, 128, 512, 2, 1, 1.0},
                                   {&ii_pingpong, 128, 256, 2, 1, 1.1},
                                   {&ii_short, 64, 256, 1, 1, 1.2}};
  static const GroupedTile io[] = {{&io_large, 128, 512, 2, 1, 1.0},
                                   {&io_pingpong, 128, 256, 2, 1, 1.1},
                                   {&io_short, 64, 256, 1, 1, 1.2}};
  std::span<const GroupedTile> tiles = call.b[0].major == Major::inner ? ii : io;
  if (call.dtype == DType::f32) tiles = tf32;
  return run_chosen(tiles, call, NoOptions{});
}

// A product for each group of inner indices.
inline bool run_inner_groups(const ProductCall& call) {
  static GroupedUnit oo_large("oo_large"), oo_pingpong("oo_pingpong"), tf32_inner("tf32_inner");
  static const GroupedTile tf32[] = {{&tf32_inner, 256, 128, 2, 1, 1.0}};
  static const GroupedTile oo[] = {{&oo_large, 256, 256, 2, 1, 1.0},
                                   {&oo_pingpong, 256, 128, 2, 1, 1.1}};
  std::span<const GroupedTile> tiles = oo;
  if (call.dtype == DType::f32) tiles = tf32;
  return run_chosen(tiles, call, NoOptions{});
}

}  // namespace opforge
