// SPDX-License-Identifier: Apache-2.0
// Forward reads x and writes y: the floor is a copy. Backward reads grad and x and writes grad_x:
// 1.5 copies; the gradients of weight and bias are summed on the way. All of it is shared with
// rms_norm.
#pragma once

#include <opforge/families/norm/backward.cuh>
