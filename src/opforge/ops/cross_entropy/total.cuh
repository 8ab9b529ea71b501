// SPDX-License-Identifier: Apache-2.0
// The mean or sum of cross_entropy's losses, in an order that depends on their number alone, so
// that results repeat to the bit: threads add up their share of a block's rows, blocks write parts,
// and the last block to arrive adds those.
#pragma once

#include <opforge/core/launch.h>
#include <opforge/core/reduce.h>

#include <algorithm>

#include "labels.cuh"

namespace opforge {

template <class A>
struct LossTotal {
  const A* losses;
  Labels labels;
  int64_t rows;
  A *parts, *loss;
  int64_t *part_counts, *count;  // count: of the rows not ignored, if a mean is wanted
  unsigned* arrived;
};

template <class A>
__global__ void __launch_bounds__(1024) cross_entropy_total(const LossTotal<A> p) {
  const int64_t piece = ceil_div(p.rows, gridDim.x), first = blockIdx.x * piece;
  const int64_t last = min(first + piece, p.rows);
  A sum = 0;
  int64_t count = 0;
  if (p.count != nullptr) {  // before the wait: the labels do not come from the kernel before
#pragma unroll 8
    for (int64_t i = first + threadIdx.x; i < last; i += blockDim.x) {
      count += p.labels.ignored(p.labels.of(i)) ? 0 : 1;
    }
  }
  await_previous();
#pragma unroll 8
  for (int64_t i = first + threadIdx.x; i < last; i += blockDim.x) sum += p.losses[i];
  sum = group_sum(sum, blockDim.x);
  count = group_sum(count, blockDim.x);
  if (gridDim.x > 1) {
    struct Shared {
      bool last;
    };
    bool& is_last = shared<Shared>().last;
    if (threadIdx.x == 0) {
      p.parts[blockIdx.x] = sum;
      p.part_counts[blockIdx.x] = count;
      __threadfence();
      is_last = atomicAdd(p.arrived, 1u) == gridDim.x - 1;
      __threadfence();
    }
    __syncthreads();
    if (!is_last) return;
    const bool mine = threadIdx.x < gridDim.x;
    sum = group_sum(mine ? p.parts[threadIdx.x] : A(0), blockDim.x);
    count = group_sum(mine ? p.part_counts[threadIdx.x] : int64_t(0), blockDim.x);
  }
  if (threadIdx.x != 0) return;
  *p.loss = p.count != nullptr ? sum / A(count) : sum;
  if (p.count != nullptr) *p.count = count;
}

// Only for very many rows several blocks are faster than one: their parts must be added up, too.
inline int total_blocks(int64_t rows) {
  return rows <= 16384 ? 1 : int(std::min<int64_t>(rows / 4096, 128));
}
inline int total_threads(int64_t rows) { return rows > 4096 && rows <= 16384 ? 1024 : 512; }

}  // namespace opforge
