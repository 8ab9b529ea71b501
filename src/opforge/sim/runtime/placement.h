// SPDX-License-Identifier: Apache-2.0
// Where the host side of an op works: on the device of its tensors, on that device's current
// stream, and without waiting.
#pragma once

#include "state.h"

namespace opforge::sim {

// Reports a launch on another device or stream than that of the tensors. `pc` is where launch()
// returns to.
void check_placement(const cudaLaunchConfig_t& config, const Kernel& kernel, const void* pc);

// Where the op launches: opforge::launch calls from launch.h, of which an author learns nothing.
const void* outside_launch(const void* pc);

}  // namespace opforge::sim
