// SPDX-License-Identifier: Apache-2.0
#include "../kernel.cuh"

namespace opforge {

static bool run(const ProductCall& call, const NoOptions& none) {
  return run_short_groups<Groups::inner, HopperTile<128, 128, 2, true, 2>, Major::outer,
                          Major::outer>(call, none);
}

}  // namespace opforge

OPFORGE_UNIT(oo_pingpong, opforge::run)
