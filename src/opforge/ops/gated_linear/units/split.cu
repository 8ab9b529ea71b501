// SPDX-License-Identifier: Apache-2.0
#include "../kernel.cuh"

namespace opforge {

static bool run(const ProductCall& call, const Activation& activation) {
  return run_gated_short<false, HopperTile<64, 128, 1, false, 1, 1, 4>>(call, activation);
}

}  // namespace opforge

OPFORGE_UNIT(split, opforge::run)
