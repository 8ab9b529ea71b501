// SPDX-License-Identifier: Apache-2.0
// cumsum: running sums along one dim.
//
//   moves     reads x and writes y: the floor is a copy.
//   computes  an addition for each element, and a few for the scans of each thread, warp and block.
//
//   scan_rows     sums of adjacent elements                                  (rows.cuh)
//   scan_columns  sums down the rows of matrices, many columns side by side  (columns.cuh)
//
// Every block keeps what it scans in registers between its one read and its one write. Threads add
// up what they hold, scan those sums across the block, and add what came before to each element. A
// row too long for a block is held by a cluster of blocks. Longer rows, and many that are
// unaligned, are scanned part by part. If there are too few rows to fill the GPU, they are cut into
// chunks. A first launch (sum_chunks, or scan_columns with Pass::sums) adds up the chunks: a second
// read, in an order that depends on the shape alone.
#pragma once

#include "columns.cuh"
#include "rows.cuh"
