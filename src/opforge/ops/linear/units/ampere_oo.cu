// SPDX-License-Identifier: Apache-2.0
#include "../kernel.cuh"

namespace opforge {

// unreached: the check simulates Hopper; see tests/ops/test_linear_mma.py
static bool run(const ProductCall& call, const LinearOptions& options) {
  return run_linear_ampere_short<Major::outer, Major::outer>(call, options);
}

}  // namespace opforge

OPFORGE_UNIT(ampere_oo, opforge::run)
