// SPDX-License-Identifier: Apache-2.0
// Which unit makes a product. Includes no torch header.
#pragma once

#include <opforge/families/product/choice.h>

#include "options.h"

namespace opforge {

using LinearUnit = Unit<bool(const ProductCall&, const LinearOptions&)>;

inline bool run_product(const ProductCall& call, const LinearOptions& options) {
  using Tile = ProductTile<LinearOptions>;
  static LinearUnit ii_large("ii_large"), ii_pingpong("ii_pingpong"), ii_split("ii_split"),
      ii_wide("ii_wide"), ii_medium("ii_medium"), ii_small("ii_small"), ii_half("ii_half"),
      io_large("io_large"), io_pingpong("io_pingpong"), io_wide("io_wide"), io_small("io_small"),
      oo_large("oo_large"), oo_pingpong("oo_pingpong"), oo_wide("oo_wide"), oo_split("oo_split"),
      oi_pingpong("oi_pingpong"), tf32_large("tf32_large"), tf32_split("tf32_split"),
      ii_stream("ii_stream"), io_stream("io_stream"), oo_stream("oo_stream");
  // By the majors of a and b: inner or outer.
  static const Tile tf32[] = {{&tf32_large, 256, 128, 2, 1, 1.0},
                              {&tf32_split, 64, 128, 4, 4, 4.3}};
  static const Tile ii[] = {
      {&ii_large, 256, 256, 2, 1, 1.0},  {&ii_pingpong, 256, 128, 2, 1, 1.1},
      {&ii_split, 64, 128, 4, 4, 4.3},   {&ii_wide, 256, 256, 2, 1, 1.0},
      {&ii_medium, 256, 128, 2, 1, 1.1}, {&ii_small, 64, 64, 2, 2, 4.0},
      {&ii_half, 128, 128, 2, 2, 1.2},   {&ii_stream, 256, 256, 2, 1, 1.0, true}};
  static const Tile io[] = {{&io_large, 256, 256, 2, 1, 1.0},
                            {&io_pingpong, 256, 128, 2, 1, 1.1},
                            {&io_wide, 256, 256, 2, 1, 1.0},
                            {&io_small, 64, 64, 2, 2, 4.0},
                            {&io_stream, 256, 256, 2, 1, 1.0, true}};
  static const Tile oi[] = {{&oi_pingpong, 256, 128, 2, 1, 1.0}};
  static const Tile oo[] = {{&oo_large, 256, 256, 2, 1, 1.0},
                            {&oo_pingpong, 256, 128, 2, 1, 1.1},
                            {&oo_wide, 256, 256, 2, 1, 1.0},
                            {&oo_split, 128, 256, 4, 4, 1.1},
                            {&oo_stream, 256, 256, 2, 1, 1.0, true}};
  static LinearUnit ampere_ii("ampere_ii"), ampere_io("ampere_io"), ampere_oi("ampere_oi"),
      ampere_oo("ampere_oo"), ampere_tf32("ampere_tf32");
  static const Tile ampere[] = {{&ampere_ii, 128, 128, 1, 1, 1.0},
                                {&ampere_io, 128, 128, 1, 1, 1.0},
                                {&ampere_oi, 128, 128, 1, 1, 1.0},
                                {&ampere_oo, 128, 128, 1, 1, 1.0},
                                {&ampere_tf32, 128, 128, 1, 1, 1.0}};
  const bool a_inner = call.a.major == Major::inner, b_inner = call.b[0].major == Major::inner;
  // unreached: the check simulates Hopper; see tests/ops/test_linear_mma.py
  if (!is_hopper()) {
    const int which = call.dtype == DType::f32 ? 4 : (a_inner ? 0 : 2) + (b_inner ? 0 : 1);
    return run_chosen(std::span(&ampere[which], 1), call, options);
  }
  std::span<const Tile> tiles = tf32;
  if (call.dtype != DType::f32) {
    tiles = ii;
    if (!b_inner) tiles = io;
    if (!a_inner) tiles = oo;
    if (!a_inner && b_inner) tiles = oi;
  }
  return run_chosen(tiles, call, options);
}

}  // namespace opforge
