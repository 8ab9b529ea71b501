// SPDX-License-Identifier: Apache-2.0
#include "../kernel.cuh"

namespace opforge {

static bool run(const ProductCall& call, const ScaledOptions& options) {
  using Tile = InParts<HopperTile<256, 128, 2, false, 1, 2>>;
  return run_gradient<Tile>(call, options);
}

}  // namespace opforge

OPFORGE_UNIT(gradient_wide, opforge::run)
