// SPDX-License-Identifier: Apache-2.0
#include "../kernel.cuh"

namespace opforge {

static bool run(const ProductCall& call, const ScaledOptions& options) {
  using Tile = InParts<HopperTile<64, 128, 1, false, 1, 1, 4>>;
  return run_gradient<Tile>(call, options);
}

}  // namespace opforge

OPFORGE_UNIT(gradient_split, opforge::run)
