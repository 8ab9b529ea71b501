// SPDX-License-Identifier: Apache-2.0
#include "../kernel.cuh"

namespace opforge {

static bool run(const ProductCall& call, const ScaledOptions& options) {
  using Tile = InParts<HopperTile<64, 128, 1, false, 1, 1, 4>>;
  if (call.dtype == DType::f16) return run_layer<half, Tile>(call, options);
  return run_layer<bfloat16, Tile>(call, options);
}

}  // namespace opforge

OPFORGE_UNIT(split, opforge::run)
