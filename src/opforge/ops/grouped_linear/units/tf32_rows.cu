// SPDX-License-Identifier: Apache-2.0
#include "../kernel.cuh"

namespace opforge {

static bool run(const ProductCall& call, const NoOptions& none) {
  return run_groups<float, Groups::rows, HopperTile<128, 128, 2, false, 1, 2>, Major::inner,
                    Major::inner>(call, none);
}

}  // namespace opforge

OPFORGE_UNIT(tf32_rows, opforge::run)
