// SPDX-License-Identifier: Apache-2.0
// Which unit makes the products of groups. Includes no torch header.
#pragma once

#include <opforge/core/launch.h>
#include <opforge/core/layout.h>
#include <opforge/core/unit.h>
#include <opforge/families/product/call.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>

namespace opforge {

using GroupedUnit = Unit<bool(const ProductCall&)>;

// A unit, the tiles of its clusters, and how many blocks these have.
struct GroupedOption {
  GroupedUnit* unit;
  int m, n, blocks;
  double cost;  // of a multiplication, relative to the largest tile's
};

// The fastest by a rule of thumb: the number of rounds that the GPU needs for all tiles, and what a
// tile takes. A tile also costs as much as some inner steps to begin and to end. The sizes of
// groups are not known here: each group ends in a tile of which half is not needed.
inline bool run_fastest(std::initializer_list<GroupedOption> options, Groups groups,
                        const ProductCall& call) {
  const GroupedOption* best = nullptr;
  double least = 0;
  const double some = double(std::max<int64_t>(call.batches, 1));
  for (const GroupedOption& option : options) {
    const double down = groups == Groups::rows
                            ? double(call.m) / option.m + std::min(some, double(call.m)) / 2
                            : double(ceil_div(call.m, option.m)) * some;
    const double k = groups == Groups::rows ? double(call.k) : double(call.k) / some;
    const double tiles = down * double(ceil_div(call.n, option.n));
    const int64_t rounds =
        ceil_div(int64_t(tiles) + 1, std::max(1, multiprocessors() / option.blocks));
    const double time =
        double(rounds) * (k + 256) * option.m * option.n / option.blocks * option.cost;
    if (best == nullptr || time < least) best = &option, least = time;
  }
  return (*best->unit)(call);
}

// Rows of groups times a matrix each.
inline bool run_row_groups(const ProductCall& call) {
  static GroupedUnit ii_large("ii_large"), ii_turns("ii_turns"), ii_short("ii_short"),
      io_large("io_large"), io_turns("io_turns"), io_short("io_short"), tf32_rows("tf32_rows");
  if (call.dtype == DType::f32) return tf32_rows(call);
  const auto run = [&](GroupedUnit& large, GroupedUnit& turns, GroupedUnit& few) {
    return run_fastest(
        {{&large, 128, 512, 2, 1.0}, {&turns, 128, 256, 2, 1.1}, {&few, 64, 256, 1, 1.2}},
        Groups::rows, call);
  };
  return call.b[0].major == Major::inner ? run(ii_large, ii_turns, ii_short)
                                         : run(io_large, io_turns, io_short);
}

// A product for each group of inner indices.
inline bool run_inner_groups(const ProductCall& call) {
  static GroupedUnit oo_large("oo_large"), oo_turns("oo_turns"), tf32_inner("tf32_inner");
  if (call.dtype == DType::f32) return tf32_inner(call);
  return run_fastest({{&oo_large, 256, 256, 2, 1.0}, {&oo_turns, 256, 128, 2, 1.1}}, Groups::inner,
                     call);
}

}  // namespace opforge
