// SPDX-License-Identifier: Apache-2.0
// The units of scaled_linear: families/product/hopper.cuh with FP8 operands, which tensor cores
// take inner-major only. Bytes: x, weight and y once, and z where it is kept. Operations: 2 m n k.
//
// Precise units add the product of each 128 inner indices as floats, see core/wgmma.h. That takes
// registers for two sets of sums, so their warp groups have at most 128 columns.
#pragma once

#include <opforge/core/unit.h>

#include <opforge/families/product/hopper_launch.cuh>
#include <opforge/families/product/scaled.cuh>

#include "options.h"

namespace opforge {

template <class Tile>
struct InParts : Tile {
  static constexpr bool kInParts = true;
};

template <class T, class Tile, class Epilogue>
bool run_fp8(const ProductCall& call, const Epilogue& epilogue) {
  return run_hopper<HopperProduct<T, Tile, Major::inner, Major::inner, Epilogue>>(call, epilogue);
}

// E4M3 times E4M3, with all that a linear layer does after the product.
template <class Out, class Tile>
bool run_layer(const ProductCall& call, const ScaledOptions& options) {
  using Epilogue = Scaled<LinearEpilogue<Out>>;
  return run_fp8<float8_e4m3, Tile, Epilogue>(call, {{options.finish, options.adds}});
}

// E5M2 times E4M3, as the products of a backward are.
template <class Tile>
bool run_gradient(const ProductCall& call, const ScaledOptions&) {
  using T = Mixed<float8_e5m2, float8_e4m3>;
  if (call.dtype == DType::f32) return run_fp8<T, Tile, Scaled<CopyEpilogue<float>>>(call, {});
  if (call.dtype == DType::f16) return run_fp8<T, Tile, Scaled<CopyEpilogue<half>>>(call, {});
  return run_fp8<T, Tile, Scaled<CopyEpilogue<bfloat16>>>(call, {});
}

}  // namespace opforge
