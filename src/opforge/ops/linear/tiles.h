// SPDX-License-Identifier: Apache-2.0
// Which unit makes a product. Includes no torch header.
#pragma once

#include <opforge/core/launch.h>
#include <opforge/core/layout.h>
#include <opforge/families/product/call.h>

#include <cstdint>

#include "kernel.cuh"

namespace opforge {

using LinearUnit = Unit<bool(const ProductCall&, const LinearOptions&)>;

// A unit, the tiles of its clusters, and how it splits the inner dim.
struct TileOption {
  LinearUnit* unit;
  int m, n, blocks, split;
  double cost;  // of a multiplication, relative to the largest tile's
};

// The fastest by a rule of thumb: the number of rounds that the GPU needs for all tiles, and what a
// tile takes. A tile also costs as much as some inner steps to begin and to end.
inline LinearUnit& choose_tile(std::span<const TileOption> options, const ProductCall& call) {
  const TileOption* best = nullptr;
  double least = 0;
  for (const TileOption& option : options) {
    const int64_t tiles = ceil_div(call.m, option.m) * ceil_div(call.n, option.n) * call.batches;
    const int64_t rounds = ceil_div(tiles, std::max(1, multiprocessors() / option.blocks));
    const double steps = double(ceil_div(call.k, option.split)) + 256;
    const double work = double(option.m) * option.n * option.split / option.blocks;
    const double time = double(rounds) * steps * work * option.cost;
    if (best == nullptr || time < least) best = &option, least = time;
  }
  return *best->unit;
}

inline bool run_product(const ProductCall& call, const LinearOptions& options) {
  static LinearUnit ii_large("ii_large"), ii_turns("ii_turns"), ii_split("ii_split"),
      io_large("io_large"), io_turns("io_turns"), oo_large("oo_large"), oo_turns("oo_turns"),
      oi_turns("oi_turns"), tf32_large("tf32_large"), tf32_split("tf32_split");
  const bool a_inner = call.a.major == Major::inner, b_inner = call.b[0].major == Major::inner;
  const auto run = [&](std::initializer_list<TileOption> units) {
    return choose_tile({units.begin(), units.size()}, call)(call, options);
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
