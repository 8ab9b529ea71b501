// SPDX-License-Identifier: Apache-2.0
#include "../kernel.cuh"

namespace opforge {

static bool run(const ProductCall& call, const ScaledOptions& options) {
  using Tile = HopperTile<128, 128, 2, true, 2>;
  if (call.dtype == DType::f16) return run_layer<half, Tile>(call, options);
  return run_layer<bfloat16, Tile>(call, options);
}

}  // namespace opforge

OPFORGE_UNIT(fast_pingpong, opforge::run)
