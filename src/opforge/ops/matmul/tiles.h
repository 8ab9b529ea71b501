// SPDX-License-Identifier: Apache-2.0
// Which unit makes a product on the tensor cores. Includes no torch header.
#pragma once

#include <opforge/families/product/choice.h>

#include "rungs/options.h"

namespace opforge {

// The index of these majors in tables of units: inner inner, inner outer, outer inner, outer outer.
inline int majors_of(const ProductCall& call) {
  return (call.a.major == Major::outer ? 2 : 0) + (call.b[0].major == Major::outer ? 1 : 0);
}

inline bool run_hopper_unit(const ProductCall& call) {
  using Tile = ProductTile<NoOptions>;
  static MatmulUnit ii_large("ii_large"), ii_pingpong("ii_pingpong"), io_large("io_large"),
      io_pingpong("io_pingpong"), oi_large("oi_large"), oi_pingpong("oi_pingpong"),
      oo_large("oo_large"), oo_pingpong("oo_pingpong"), tf32_large("tf32_large");
  static const Tile tf32[] = {{&tf32_large, 256, 128, 2, 1, 1.0}};
  static const Tile shorts[4][2] = {
      {{&ii_large, 256, 256, 2, 1, 1.0}, {&ii_pingpong, 256, 128, 2, 1, 1.1}},
      {{&io_large, 256, 256, 2, 1, 1.0}, {&io_pingpong, 256, 128, 2, 1, 1.1}},
      {{&oi_large, 256, 256, 2, 1, 1.0}, {&oi_pingpong, 256, 128, 2, 1, 1.1}},
      {{&oo_large, 256, 256, 2, 1, 1.0}, {&oo_pingpong, 256, 128, 2, 1, 1.1}}};
  std::span<const Tile> tiles = tf32;
  if (call.dtype != DType::f32) tiles = shorts[majors_of(call)];
  return run_chosen(tiles, call, NoOptions{});
}

inline bool run_mma_unit(const ProductCall& call) {
  static MatmulUnit tf32("mma_tf32");
  static MatmulUnit shorts[] = {MatmulUnit("mma_ii"), MatmulUnit("mma_io"), MatmulUnit("mma_oi"),
                                MatmulUnit("mma_oo")};
  return (call.dtype == DType::f32 ? tf32 : shorts[majors_of(call)])(call, NoOptions{});
}

}  // namespace opforge
