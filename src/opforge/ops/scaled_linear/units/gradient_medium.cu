// SPDX-License-Identifier: Apache-2.0
#include "../kernel.cuh"

namespace opforge {

static bool run(const ProductCall& call, const ScaledOptions& options) {
  using Tile = InParts<HopperTile<128, 128, 2, false, 2>>;
  return run_gradient<Tile>(call, options);
}

}  // namespace opforge

OPFORGE_UNIT(gradient_medium, opforge::run)
