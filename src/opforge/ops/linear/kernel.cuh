// SPDX-License-Identifier: Apache-2.0
// The units of linear: families/product/hopper.cuh with one tile and one pair of majors each, or
// ampere.cuh, and an epilogue for all that linear does after the product. Bytes: x, weight and y
// once, and z where it is kept. Operations: 2 m n k.
#pragma once

#include <opforge/core/unit.h>

#include <opforge/families/product/ampere_launch.cuh>
#include <opforge/families/product/epilogue.cuh>
#include <opforge/families/product/hopper_launch.cuh>

#include "options.h"

namespace opforge {

template <class T, class Tile, Major a, Major b>
bool run_linear(const ProductCall& call, const LinearOptions& options) {
  return run_hopper<HopperProduct<T, Tile, a, b, LinearEpilogue<T>>>(
      call, {options.finish, options.adds});
}

template <class Tile, Major a, Major b>
bool run_linear_short(const ProductCall& call, const LinearOptions& options) {
  if (call.dtype == DType::f16) return run_linear<half, Tile, a, b>(call, options);
  return run_linear<bfloat16, Tile, a, b>(call, options);
}

template <class T, Major a, Major b>
// unreached: the check simulates Hopper; see tests/ops/test_linear_mma.py
bool run_linear_ampere(const ProductCall& call, const LinearOptions& options) {
  return run_ampere<AmpereProduct<T, a, b, LinearEpilogue<T>>>(call,
                                                               {options.finish, options.adds});
}

template <Major a, Major b>
// unreached: the check simulates Hopper; see tests/ops/test_linear_mma.py
bool run_linear_ampere_short(const ProductCall& call, const LinearOptions& options) {
  if (call.dtype == DType::f16) return run_linear_ampere<half, a, b>(call, options);
  return run_linear_ampere<bfloat16, a, b>(call, options);
}

}  // namespace opforge
