// SPDX-License-Identifier: Apache-2.0
#include "../kernel.cuh"

namespace opforge {

static bool run(const ProductCall& call, const Activation& activation) {
  return run_gated<float, false, HopperTile<128, 128, 2, false, 2>>(call, activation);
}

}  // namespace opforge

OPFORGE_UNIT(tf32, opforge::run)
