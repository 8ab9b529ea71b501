// SPDX-License-Identifier: Apache-2.0
// Forward reads x and writes y: the floor is a copy. Backward reads grad_y and y and writes grad_x:
// 1.5 copies. What causal hides is not read. All of it is shared with softmax.
#pragma once

#include <opforge/families/softmax/kernel.cuh>
