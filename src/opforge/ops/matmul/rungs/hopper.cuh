// SPDX-License-Identifier: Apache-2.0
// Rung 6, hopper: the tensor cores and the copy engine of compute capability 9.0.
//
// Fewest bytes: a, b and y once. Operations: 2 m n k.
// This rung moves m n k (1/256 + 1/256) elements from L2: the two blocks of a cluster make 256 x
// 256 elements of y, and share what they fetch of b. The copy engine (TMA) fetches whole tiles: one
// thread asks for them. Operands go from shared memory to the tensor cores (wgmma) without passing
// through registers. A warp group fetches and two multiply; blocks stay, and fetch the next tile
// while this one is written. The kernel is that of linear, families/product/hopper.cuh, without
// anything after the product.
#pragma once

#include <opforge/core/unit.h>

#include <opforge/families/product/epilogue.cuh>
#include <opforge/families/product/hopper_launch.cuh>

#include "options.h"

namespace opforge {

template <class T, class Tile, Major a, Major b>
bool run_hopper_rung(const ProductCall& call) {
  return run_hopper<HopperProduct<T, Tile, a, b, CopyEpilogue<T>>>(call, {});
}

template <class Tile, Major a, Major b>
bool run_hopper_rung_short(const ProductCall& call) {
  if (call.dtype == DType::f16) return run_hopper_rung<half, Tile, a, b>(call);
  return run_hopper_rung<bfloat16, Tile, a, b>(call);
}

}  // namespace opforge
