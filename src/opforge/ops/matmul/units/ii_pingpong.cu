// SPDX-License-Identifier: Apache-2.0
#include "../rungs/hopper.cuh"

namespace opforge {

static bool run(const ProductCall& call, const NoOptions&) {
  return run_hopper_rung_short<HopperTile<128, 128, 2, true, 2>, Major::inner, Major::inner>(call);
}

}  // namespace opforge

OPFORGE_UNIT(ii_pingpong, opforge::run)
