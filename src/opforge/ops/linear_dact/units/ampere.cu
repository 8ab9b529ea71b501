// SPDX-License-Identifier: Apache-2.0
#include "../kernel.cuh"

namespace opforge {

static bool run(const ProductCall& call, const Activation& activation) {
  return run_dact_ampere_short<DactEpilogue>(call, activation);
}

}  // namespace opforge

OPFORGE_UNIT(ampere, opforge::run)
