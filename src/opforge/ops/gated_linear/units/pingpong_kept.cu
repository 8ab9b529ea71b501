// SPDX-License-Identifier: Apache-2.0
#include "../kernel.cuh"

namespace opforge {

static bool run(const ProductCall& call, const Activation& activation) {
  return run_gated_short<true, HopperTile<128, 128, 2, true, 2>>(call, activation);
}

}  // namespace opforge

OPFORGE_UNIT(pingpong_kept, opforge::run)
