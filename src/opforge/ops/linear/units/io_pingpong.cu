// SPDX-License-Identifier: Apache-2.0
#include "../kernel.cuh"

namespace opforge {

static bool run(const ProductCall& call, const LinearOptions& options) {
  return run_linear_short<HopperTile<128, 128, 2, true, 2>, Major::inner, Major::outer>(call,
                                                                                        options);
}

}  // namespace opforge

OPFORGE_UNIT(io_pingpong, opforge::run)
