// SPDX-License-Identifier: Apache-2.0
// Launches families/product/hopper.cuh. Includes no torch header.
#pragma once

#include <opforge/core/launch.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <opforge/families/product/hopper.cuh>

namespace opforge {

// Whether the copy engine can read and write all that a call names. Operands must be: where they
// are not, they are copied first. The others are accessed element by element if need be.
template <class T>
inline bool can_map_operand(const ProductOperand& x, int64_t outer, int64_t inner,
                            int64_t batches) {
  const bool by_row = x.major == Major::inner;
  return can_map(static_cast<const T*>(x.data), {by_row ? outer : inner, by_row ? inner : outer,
                                                 x.stride, batches, x.batch_stride});
}

template <class T>
inline bool can_map_result(const ProductMatrix& x, const ProductCall& call, int64_t batches) {
  return can_map(static_cast<const T*>(x.data),
                 {call.m, call.n, x.row_stride, batches, x.batch_stride});
}

#if !defined(OPFORGE_SIM)
// Whether this library has code for the current GPU.
template <class Product>
inline bool has_code() {
  static std::atomic<int> known[64];  // 0: not asked yet
  int device = 0;
  cuda_check(cudaGetDevice(&device), "cudaGetDevice");
  if (device < 64 && known[device] != 0) return known[device] == 1;
  cudaFuncAttributes facts = {};
  const bool there = cudaFuncGetAttributes(&facts, hopper_product<Product>) == cudaSuccess &&
                     facts.binaryVersion == 90;
  if (!there) cudaGetLastError();
  if (device < 64) known[device] = there ? 1 : 2;
  return there;
}
#endif

// Runs a call whose operands have these majors. False if this library has no code for the GPU.
template <class Product>
bool run_hopper(const ProductCall& call, const typename Product::Epilogue& epilogue) {
  using T = typename Product::T;
  using Out = typename Product::Out;
  using Tile = typename Product::Tile;
#if !defined(OPFORGE_SIM)
  if (!has_code<Product>()) return false;
#endif
  // Groups are parts of one matrix.
  constexpr Groups kGroups = Product::kGroups;
  const int64_t batches_a = kGroups == Groups::none ? call.batches : 1;
  const int64_t batches_b = kGroups == Groups::inner ? 1 : call.batches;
  const int64_t batches_out = kGroups == Groups::rows ? 1 : call.batches;
  const auto map_operand = [&](const ProductOperand& x, int64_t outer, int box_rows,
                               int64_t batches) {
    const bool by_row = x.major == Major::inner;
    const int64_t rows = by_row ? outer : call.k, cols = by_row ? call.k : outer;
    return tensor_map(static_cast<const T*>(x.data),
                      {rows, cols, x.stride, batches, x.batch_stride}, box_rows, sizeof(T) == 4);
  };
  HopperMaps maps = {};
  typename Product::Params p = {};
  maps.a = map_operand(call.a, call.m, Product::kBoxRowsA, batches_a);
  for (int i = 0; i < Product::kParts; ++i) {
    maps.b[i] = map_operand(call.b[i], call.n, Product::kBoxRowsB, batches_b);
  }
  p.m = int(call.m), p.n = int(call.n), p.k = int(call.k), p.batches = int(call.batches);
  p.group = call.group, p.by_columns = call.by_columns;
  p.ins = call.ins, p.outs = call.outs;
  std::ranges::copy(call.columns, p.columns);
  p.rows = call.rows;
  p.sums = call.sums;
  p.epilogue = epilogue;
  p.groups = call.groups;
  // Rows are written in pieces of 16 bytes where a group ends.
  p.plain = kGroups == Groups::rows && call.n * int64_t(sizeof(Out)) % 16 != 0;
  for (int i = 0; i < call.ins; ++i) p.plain |= !can_map_result<Out>(call.in[i], call, batches_out);
  for (int i = 0; i < call.outs; ++i)
    p.plain |= !can_map_result<Out>(call.out[i], call, batches_out);
  const auto map_result = [&](const ProductMatrix& x) {
    return tensor_map(static_cast<const Out*>(x.data),
                      {call.m, call.n, x.row_stride, batches_out, x.batch_stride},
                      Product::kSlotRows);
  };
  for (int i = 0; i < call.ins; ++i) {
    p.in[i] = call.in[i];
    if (!p.plain) maps.in[i] = map_result(call.in[i]);
  }
  for (int i = 0; i < call.outs; ++i) {
    p.out[i] = call.out[i];
    if (!p.plain) maps.out[i] = map_result(call.out[i]);
  }
  const auto tiles = [](int64_t size, int64_t tile) { return (size + tile - 1) / tile; };
  const int64_t down = tiles(call.m, Tile::kM * Tile::kClusterM);
  const int64_t across = tiles(call.n, Product::kCols * Tile::kClusterN);
  // At most: each group, and the rows after the last one, may begin a row of tiles.
  const int64_t clusters =
      kGroups == Groups::rows ? (down + call.batches) * across : down * across * call.batches;
  if (clusters > INT_MAX / 2) fail("a product of ", clusters, " tiles is too large");
  const int64_t most = std::max(1, multiprocessors() / Tile::kBlocks);
  int64_t working = std::min(clusters, most);
  if constexpr (Tile::kStreams) {  // there are parts for all, if there are as many stages
    working = std::min(clusters * tiles(call.k, Product::kInner), most);
    const int64_t cut = clusters % working, floats = int64_t(Tile::kM) * Tile::kN * Tile::kBlocks;
    if (cut != 0) {
      const auto memory = call.memory(2 * working * floats, cut * Tile::kBlocks * Tile::kConsumers);
      p.partial = memory.floats, p.counts = memory.zeros;
    }
  }
  Config config{dim3(unsigned(working) * Tile::kBlocks), dim3(Product::kThreads), call.stream};
  config.shared_bytes = Product::kSharedBytes;
  config.cluster = Tile::kBlocks;
  launch(hopper_product<Product>, config, maps, p);
  return true;
}

}  // namespace opforge
