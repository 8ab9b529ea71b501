// SPDX-License-Identifier: Apache-2.0
#include "../rungs/mma.cuh"

namespace opforge {

static bool run(const ProductCall& call, const NoOptions&) {
  run_mma_rung<float, Major::inner, Major::inner>(call);
  return true;
}

}  // namespace opforge

OPFORGE_UNIT(mma_tf32, opforge::run)
