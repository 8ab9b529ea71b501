// SPDX-License-Identifier: Apache-2.0
// cumsum reads x and writes y: its floor is a copy.
//
// Every block keeps what it scans in registers between its one read and its one write. Threads add
// up what they hold, scan those sums across the block, and add what came before to each element.
// A row that no block holds is held by a cluster of them. Longer rows, and many that are not
// aligned, a block takes in parts; where there are too few rows to fill the GPU these are cut into
// chunks, whose sums a first launch makes: a second read, in an order that depends on the shape
// alone.
#pragma once

#include "columns.cuh"
#include "rows.cuh"
