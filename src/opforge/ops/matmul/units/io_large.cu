// SPDX-License-Identifier: Apache-2.0
#include "../rungs/hopper.cuh"

namespace opforge {

static bool run(const ProductCall& call, const NoOptions&) {
  return run_hopper_rung_short<HopperTile<128, 256, 2, false, 2>, Major::inner, Major::outer>(call);
}

}  // namespace opforge

OPFORGE_UNIT(io_large, opforge::run)
