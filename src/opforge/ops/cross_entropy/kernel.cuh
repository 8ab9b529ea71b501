// SPDX-License-Identifier: Apache-2.0
// cross_entropy: for each row x of the logits, loss = log(sum of e^x) - x[label]; and its gradient.
//
//   forward   moves: reads the logits once, writes three numbers for each row: the floor is a read.
//             computes: 3 operations for each logit, one of them an exponential.
//   backward  moves: reads the logits once, writes as much: the floor is a copy.
//             computes: as much. The forward saved each row's peak and logarithm.
//
// Forward. A row belongs to a group of threads: some lanes of a warp, a block, or a cluster of
// blocks. Its threads take the aligned vectors in turn. Single elements before and after those, the
// ends, go one each to the first threads. Each thread keeps an ExpSum: the largest logit so far
// (the peak) and the sum of e^(logit - peak). With a group of four, and one end on each side:
//
//   row of logits     | end | v0 | v1 | v2 | v3 | v4 | v5 | ... | end |
//   thread of a group    0     0    1    2    3    0    1   ...    1
//
//   cross_entropy_rows     vectors -> ExpSum of a thread -> ExpSum of the row, where the sums of
//                          its threads meet -> loss, peak and log_sum of the row
//   cross_entropy_total    losses of all rows -> their mean or sum, in a second small launch
//
// Backward. No sums: an element's gradient follows from the logit and its row's saved numbers.
//
//   cross_entropy_gradient_of_vectors   a thread owns one vector; rows are made of aligned vectors
//   cross_entropy_gradient_of_rows      other rows; a thread owns two vectors and perhaps an end
//
// All kernels load logits before they know the label, so that no load waits for another. What was
// loaded of an ignored row is not used.
#pragma once

#include "backward.cuh"
#include "forward.cuh"
#include "total.cuh"
