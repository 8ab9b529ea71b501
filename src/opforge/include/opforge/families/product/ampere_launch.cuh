// SPDX-License-Identifier: Apache-2.0
// Launches families/product/ampere.cuh. Includes no torch header.
#pragma once

#include <opforge/core/launch.h>
#include <opforge/core/layout.h>

#include <algorithm>
#include <climits>
#include <opforge/families/product/ampere.cuh>

namespace opforge {

// Runs a call whose operands have these majors, and rows aligned to 16 bytes. False if this library
// has no code for the GPU.
template <class Product>
bool run_ampere(const ProductCall& call, const typename Product::Epilogue& epilogue) {
  using Out = typename Product::Out;
#if !defined(OPFORGE_SIM)
  cudaFuncAttributes facts = {};
  if (cudaFuncGetAttributes(&facts, ampere_product<Product>) != cudaSuccess) {
    cudaGetLastError();
    return false;
  }
  // Code from PTX of an older GPU may be empty.
  if (facts.binaryVersion < 80 || facts.ptxVersion < 80) return false;
#endif
  typename Product::Params p = {};
  p.m = int(call.m), p.n = int(call.n), p.k = int(call.k);
  p.group = call.group, p.by_columns = call.by_columns;
  p.ins = call.ins, p.outs = call.outs;
  p.a = call.a;
  std::ranges::copy(call.b, p.b);
  std::ranges::copy(call.columns, p.columns);
  p.sums = call.sums;
  p.epilogue = epilogue;
  const auto take = [&](const ProductMatrix& from, ProductMatrix& to) {
    const auto aligned = [](int64_t stride) { return stride * int64_t(sizeof(Out)) % 16 == 0; };
    p.plain |= reinterpret_cast<uintptr_t>(from.data) % 16 != 0 ||
               (call.m > 1 && !aligned(from.row_stride)) ||
               (call.batches > 1 && !aligned(from.batch_stride));
    to = from;
  };
  for (int i = 0; i < call.ins; ++i) take(call.in[i], p.in[i]);
  for (int i = 0; i < call.outs; ++i) take(call.out[i], p.out[i]);
  p.tiles_m = int(ceil_div(call.m, Product::kM)), p.tiles_n = int(ceil_div(call.n, Product::kCols));
  const int64_t tiles = int64_t(p.tiles_m) * p.tiles_n * call.batches;
  if (tiles > INT_MAX / 2) fail("a product of ", tiles, " tiles is too large");
  Config config{dim3(unsigned(tiles)), dim3(Product::kThreads), call.stream};
  config.shared_bytes = Product::kSharedBytes;
  launch(ampere_product<Product>, config, p);
  return true;
}

}  // namespace opforge
