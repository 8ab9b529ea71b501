// SPDX-License-Identifier: Apache-2.0
#include "../rungs/mma.cuh"

namespace opforge {

static bool run(const ProductCall& call, const NoOptions&) {
  run_mma_short<Major::inner, Major::outer>(call);
  return true;
}

}  // namespace opforge

OPFORGE_UNIT(mma_io, opforge::run)
