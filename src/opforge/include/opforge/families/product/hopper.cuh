// SPDX-License-Identifier: Apache-2.0
// c = epilogue(a b) on the tensor cores of compute capability 9.0. Includes no torch header.
//
// A block has a warp group that asks the copy engine for tiles of a and b, into a ring of stages in
// shared memory, and one or two that multiply them (wgmma) and apply the epilogue. Blocks are
// persistent: while one tile of the result is written, the next one's operands are already coming.
// Blocks of a cluster share tiles: each fetches its part, for all of them. Or they share a tile of
// the result, each with a part of the inner dim (kSplit).
//
// Bytes: a, b and the result once, if L2 holds what neighbouring tiles share. Operations: 2 m n k.
// A tile of 128 x 256 does 170 operations for each byte that it fetches from L2.
//
// Here is who does what, and in which order. The parts are files of their own: hopper_layout.cuh,
// which the others build on, hopper_tiles.cuh (or groups.cuh, stream.cuh), hopper_fetch.cuh,
// hopper_multiply.cuh, hopper_exchange.cuh, hopper_columns.cuh, hopper_slots.cuh and
// hopper_epilogue.cuh.
#pragma once

#include <opforge/core/async.h>
#include <opforge/core/cluster.h>
#include <opforge/core/tensor_map.h>
#include <opforge/core/warpgroup.h>
#include <opforge/families/product/call.h>

#include <cstdint>
#include <opforge/families/product/groups.cuh>
#include <opforge/families/product/hopper_columns.cuh>
#include <opforge/families/product/hopper_epilogue.cuh>
#include <opforge/families/product/hopper_exchange.cuh>
#include <opforge/families/product/hopper_fetch.cuh>
#include <opforge/families/product/hopper_layout.cuh>
#include <opforge/families/product/hopper_multiply.cuh>
#include <opforge/families/product/hopper_slots.cuh>
#include <opforge/families/product/hopper_tiles.cuh>
#include <opforge/families/product/stream.cuh>
#include <type_traits>

namespace opforge {

template <class T, class Tile, Major a_major, Major b_major, class Epilogue,
          Groups groups = Groups::none>
struct HopperProduct : HopperLayout<T, Tile, a_major, b_major, Epilogue, groups> {
  using Layout = HopperLayout<T, Tile, a_major, b_major, Epilogue, groups>;
  using Layout::kGroups, Layout::kScales, Layout::kColumns, Layout::kStages, Layout::kWarps;
  using Layout::leads, Layout::sync_group, Layout::kOrder;
  using typename Layout::Params, typename Layout::Barriers, typename Layout::Shared,
      typename Layout::Position, typename Layout::Sums;
  using Fetch = HopperFetch<Layout>;
  using Multiply = HopperMultiply<Layout>;
  using Columns = HopperColumns<Layout>;
  using Slots = HopperSlots<Layout>;
  using Finish = HopperEpilogue<Layout>;

  // The tiles of this block.
  static_assert(kGroups == Groups::none || !(Tile::kInParts || Tile::kStreams));
  using Work =
      std::conditional_t<kGroups != Groups::none, GroupTiles<Layout>,
                         std::conditional_t<Tile::kStreams, StreamTiles<Layout>, AllTiles<Layout>>>;

  // The warp group that fetches.
  __device__ static void produce(const HopperMaps& maps, const Params& p, Work& work,
                                 const Shared& s) {
    Position at;
    for (int t = int(blockIdx.x) / Tile::kBlocks; t < work.tiles; t += work.step) {
      int batch, row, col;
      work.locate(p, t, batch, row, col);
      if (threadIdx.x == 0) Fetch::fetch_tile(maps, work, s, batch, row, col, at);
      __syncwarp();                      // barriers of clusters are for whole warps
      if constexpr (Tile::kSplit > 1) {  // takes part in exchange_sums()
        for (int i = 0; i < 3; ++i) cluster_sync();
      }
    }
  }

  // A warp group that multiplies.
  __device__ static void consume(const HopperMaps& maps, const Params& p, Work& work,
                                 const Shared& s, int consumer) {
    Slots slots(p, consumer);
    Position at;
    int t = int(blockIdx.x) / Tile::kBlocks;
    if constexpr (Tile::kPingPong) {
      if (consumer == 1) {
        if (t < work.tiles) arrive_some(kOrder, 2 * kWarpGroup);
        at.advance(work.stages_of(p, t));
        t += work.step;
      }
    }
    for (; t < work.tiles; t += work.step * (Tile::kPingPong ? 2 : 1)) {
      int batch, row, col;
      work.locate(p, t, batch, row, col);
      const int end = work.rows_end(p);
      typename Columns::Loaded columns;
      Columns::load(p, batch, col, columns);
      typename Columns::RowFactors rows;
      if constexpr (kScales) {
        Columns::load_rows(p, batch, row + (Tile::kPingPong ? 0 : consumer * Tile::kRows), rows);
      }
      if constexpr (Tile::kPingPong) sync_some(kOrder + consumer, 2 * kWarpGroup);
      // What the epilogue reads is put to where it does that.
      const int batch_out = kGroups == Groups::rows ? 0 : batch;
      const auto begun = [&] {
        if constexpr (!Tile::kStreams) slots.fetch_first(maps, p, s, batch_out, row, col);
        if constexpr (kColumns > 0) {
          sync_group(consumer);  // all warps have read those of the last tile
          Columns::store(s, consumer, columns);
          sync_group(consumer);
        }
      };
      Sums sums;
      // Else the compiler loses sight of these registers.
      if constexpr (Tile::kStreams) Multiply::clear(sums);
      if constexpr (Tile::kInParts) {
        begun();
        Multiply::multiply_in_parts(s, consumer, work.inner_count, at, sums);
      } else {
        Multiply::multiply(s, work, consumer, at, sums, begun);
      }
      if constexpr (Tile::kPingPong) {
        if (t + work.step < work.tiles) arrive_some(kOrder + 1 - consumer, 2 * kWarpGroup);
        at.advance(work.stages_of(p, t + work.step));
      }
      if constexpr (Tile::kSplit > 1) exchange_sums<Layout>(s, consumer, sums);
      if constexpr (Tile::kStreams) {
        if (!combine_parts(p, work, s, consumer, sums)) continue;
        slots.fetch_first(maps, p, s, batch_out, row, col);
      }
      if constexpr (kScales) Columns::scale(s, consumer, rows, sums);
      p.epilogue.choose(p, [&](const auto& transform) {
        Finish::finish(transform, maps, p, s, slots, batch_out, row, col, end, sums);
      });
    }
    if (leads()) bulk_wait_read<0>();
  }

  __device__ static void run(const HopperMaps& maps, const Params& p) {
    const Shared s;
    // The shuffle tells the compiler that it is the same in all lanes.
    const int group = __shfl_sync(0xffffffffu, int(threadIdx.x) / kWarpGroup, 0);
    Barriers& barriers = s.barriers();
    if (threadIdx.x == 0) {
      constexpr int kSharers = Tile::kClusterM * Tile::kClusterN;
      constexpr int kReaders = 4 * kSharers * (Tile::kPingPong ? 1 : Tile::kConsumers);
      for (int i = 0; i < kStages; ++i)
        init(barriers.full[i], 1), init(barriers.empty[i], kReaders);
      for (int i = 0; i < kWarps; ++i) init(barriers.in[i][0], 1), init(barriers.in[i][1], 1);
      publish_barriers();
      prefetch(maps.a);
      prefetch(maps.b[0]);
    }
    if constexpr (Tile::kBlocks > 1) {
      cluster_sync();
    } else {
      __syncthreads();
    }
    Work work(p);
    if (group == 0) {
      if constexpr (Tile::kConsumers == 2) give_registers<kScales ? 24 : 40>();
      produce(maps, p, work, s);
    } else {
      if constexpr (Tile::kConsumers == 2) take_registers<kScales ? 240 : 232>();
      consume(maps, p, work, s, group - 1);
    }
    // Until nobody arrives at this block's barriers or writes to its memory.
    if constexpr (Tile::kBlocks > 1) {
      __syncwarp();  // barriers of clusters are for whole warps
      cluster_sync();
    }
  }
};

template <class Product>
__global__ void __launch_bounds__(Product::kThreads, 1)
    hopper_product(const __grid_constant__ HopperMaps maps,
                   const __grid_constant__ typename Product::Params p) {
#if defined(OPFORGE_SIM) || defined(__CUDA_ARCH_FEAT_SM90_ALL)  // others have none of its parts
  Product::run(maps, p);
#endif
}

}  // namespace opforge
