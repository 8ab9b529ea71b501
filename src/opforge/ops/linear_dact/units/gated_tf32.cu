// SPDX-License-Identifier: Apache-2.0
#include "../kernel.cuh"

namespace opforge {

static bool run(const ProductCall& call, const Activation& activation) {
  return run_dact_tf32<GatedDactEpilogue, HopperTile<128, 128, 2, false, 2>>(call, activation);
}

}  // namespace opforge

OPFORGE_UNIT(gated_tf32, opforge::run)
