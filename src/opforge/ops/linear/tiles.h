// SPDX-License-Identifier: Apache-2.0
// Which unit makes a product. Includes no torch header.
#pragma once

#include <opforge/families/product/tiles.h>

#include "kernel.cuh"

namespace opforge {

using LinearUnit = Unit<bool(const ProductCall&, const LinearOptions&)>;

inline bool run_product(const ProductCall& call, const LinearOptions& options) {
  static LinearUnit ii_large("ii_large"), ii_turns("ii_turns"), ii_split("ii_split"),
      io_large("io_large"), io_turns("io_turns"), oo_large("oo_large"), oo_turns("oo_turns"),
      oi_turns("oi_turns"), tf32_large("tf32_large"), tf32_split("tf32_split");
  const bool a_inner = call.a.major == Major::inner, b_inner = call.b[0].major == Major::inner;
  const auto run = [&](std::initializer_list<TileOption<LinearUnit>> units) {
    return choose_tile(units, call)(call, options);
  };
  if (call.dtype == DType::f32) {
    return run({{&tf32_large, 256, 128, 2, 1, 1.0}, {&tf32_split, 64, 128, 4, 4, 1.5}});
  }
  if (a_inner && b_inner) {
    return run({{&ii_large, 256, 256, 2, 1, 1.0},
                {&ii_turns, 256, 128, 2, 1, 1.1},
                {&ii_split, 64, 128, 4, 4, 1.5}});
  }
  if (a_inner) return run({{&io_large, 256, 256, 2, 1, 1.0}, {&io_turns, 256, 128, 2, 1, 1.1}});
  if (b_inner) return oi_turns(call, options);
  return run({{&oo_large, 256, 256, 2, 1, 1.0}, {&oo_turns, 256, 128, 2, 1, 1.1}});
}

}  // namespace opforge
