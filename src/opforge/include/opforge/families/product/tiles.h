// SPDX-License-Identifier: Apache-2.0
// Chooses the unit that makes a product, by its tiles. Includes no torch header.
#pragma once

#include <opforge/core/launch.h>
#include <opforge/core/layout.h>
#include <opforge/families/product/call.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>

namespace opforge {

// A unit, the tiles of its clusters, and how it splits the inner dim.
template <class U>
struct TileOption {
  U* unit;
  int m, n, blocks, split;
  double cost;  // of a multiplication, relative to the largest tile's
};

// The fastest by a rule of thumb: the number of rounds that the GPU needs for all tiles, and what a
// tile takes. A tile also costs as much as some inner steps to begin and to end.
template <class U>
U& choose_tile(std::initializer_list<TileOption<U>> options, const ProductCall& call) {
  const TileOption<U>* best = nullptr;
  double least = 0;
  for (const TileOption<U>& option : options) {
    const int64_t tiles = ceil_div(call.m, option.m) * ceil_div(call.n, option.n) * call.batches;
    const int64_t rounds = ceil_div(tiles, std::max(1, multiprocessors() / option.blocks));
    const double steps = double(ceil_div(call.k, option.split)) + 256;
    const double work = double(option.m) * option.n * option.split / option.blocks;
    const double time = double(rounds) * steps * work * option.cost;
    if (best == nullptr || time < least) best = &option, least = time;
  }
  return *best->unit;
}

}  // namespace opforge
