// SPDX-License-Identifier: Apache-2.0
// __launch_bounds__: how many threads to a block a kernel is compiled for.
#pragma once

#include "state.h"

namespace opforge::sim {

// Throws for a launch that a GPU refuses, or may refuse, for the registers its threads need. `pc`
// is where launch() returns to.
void check_bounds(const cudaLaunchConfig_t& config, const Kernel& kernel, const void* pc);

}  // namespace opforge::sim
