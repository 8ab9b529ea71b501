// SPDX-License-Identifier: Apache-2.0
// The kernels of rms_norm, all of them shared with layer_norm:
//
//   forward    map_rows_kernel with NormForward; norm_stream for many long rows
//   backward   norm_backward_kernel; norm_backward_dots, _piece and _column for longer rows
//
// Forward reads x and writes y: the floor is a copy, at 4 operations per element. Backward reads
// grad and x and writes grad_x: 1.5 copies; the weight's gradient is summed on the way.
#pragma once

#include <opforge/families/norm/backward.cuh>
#include <opforge/families/norm/forward.cuh>
#include <opforge/families/norm/long.cuh>
#include <opforge/families/norm/stream.cuh>
