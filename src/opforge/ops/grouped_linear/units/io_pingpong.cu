// SPDX-License-Identifier: Apache-2.0
#include "../kernel.cuh"

namespace opforge {

static bool run(const ProductCall& call, const NoOptions& none) {
  return run_short_groups<Groups::rows, HopperTile<128, 128, 2, true, 1, 2>, Major::inner,
                          Major::outer>(call, none);
}

}  // namespace opforge

OPFORGE_UNIT(io_pingpong, opforge::run)
