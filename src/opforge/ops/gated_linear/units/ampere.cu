// SPDX-License-Identifier: Apache-2.0
#include "../kernel.cuh"

namespace opforge {

// unreached: the check simulates Hopper; see tests/ops/test_linear_mma.py
static bool run(const ProductCall& call, const Activation& activation) {
  return run_gated_ampere_short<false>(call, activation);
}

}  // namespace opforge

OPFORGE_UNIT(ampere, opforge::run)
