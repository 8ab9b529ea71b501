// SPDX-License-Identifier: Apache-2.0
#include "../kernel.cuh"

namespace opforge {

// unreached: the check simulates Hopper; see tests/ops/test_linear_mma.py
static bool run(const ProductCall& call, const Activation& activation) {
  return run_dact_ampere_tf32<GatedDactEpilogue>(call, activation);
}

}  // namespace opforge

OPFORGE_UNIT(ampere_gated_tf32, opforge::run)
