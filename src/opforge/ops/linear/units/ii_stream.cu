// SPDX-License-Identifier: Apache-2.0
#include "../kernel.cuh"

namespace opforge {

static bool run(const ProductCall& call, const LinearOptions& options) {
  using Tile = Streamed<HopperTile<128, 256, 2, false, 2>>;
  return run_linear_short<Tile, Major::inner, Major::inner>(call, options);
}

}  // namespace opforge

OPFORGE_UNIT(ii_stream, opforge::run)
