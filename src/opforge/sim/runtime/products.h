// SPDX-License-Identifier: Apache-2.0
// Products of warp groups (opforge/core/wgmma.h). They read their operands as late as they can,
// when one of the threads waits for them; until then the sums are NaN.
#pragma once

#include <opforge_sim/tiles.h>

#include <array>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "shadow.h"

namespace opforge::sim {

constexpr int kWarpGroup = 128;

// The sums that products are being added to: 64 rows.
struct Sums {
  int columns;
  int under_way = 0;  // products
  std::vector<float> values;
  std::array<float*, kWarpGroup> at{};  // where each thread has its own, from when it asks
};

struct AskedProduct {
  Product product;
  uint32_t group;
  std::shared_ptr<Sums> sums;
  const Fiber* first;
  int came = 0;                          // threads
  std::vector<shadow::Written> written;  // by these its operands were
};

struct WarpGroup {
  struct Member {
    bool arrived = false;
    uint32_t asked = 0;                   // products
    uint32_t committed = 0, awaited = 0;  // groups of them
    const void* last = nullptr;           // where it asked
    uint32_t last_group = 0;
    std::vector<std::shared_ptr<Sums>> sums;  // that it has not got yet
  };
  std::array<Member, kWarpGroup> members;
  std::deque<AskedProduct> asked;
  uint32_t done = 0;  // products, before those
  uint32_t engine = 0;
};

// Reports a thread that exits without having waited.
void check_products(Worker& w, const Fiber& exits);
// "in warpgroup_wait() for a product that 96 of 128 threads have asked for, "
std::string waits_for_products(const Fiber& f);

}  // namespace opforge::sim
