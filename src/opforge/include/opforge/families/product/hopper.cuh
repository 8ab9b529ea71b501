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
#pragma once

#include <cuda_runtime.h>
#include <opforge/core/async.h>
#include <opforge/core/cluster.h>
#include <opforge/core/matrices.h>
#include <opforge/core/shared.h>
#include <opforge/core/tensor_map.h>
#include <opforge/core/types.h>
#include <opforge/core/warpgroup.h>
#include <opforge/core/wgmma.h>
#include <opforge/families/product/call.h>

#include <algorithm>
#include <cstdint>
#include <opforge/families/product/order.cuh>
#include <type_traits>

namespace opforge {

// How the result is cut into tiles, and who makes them.
template <int M, int N, int Consumers, bool PingPong = false, int ClusterM = 1, int ClusterN = 1,
          int Split = 1>
struct HopperTile {
  static constexpr int kM = M, kN = N;          // of the result, for a block
  static constexpr int kConsumers = Consumers;  // warp groups that multiply
  // The warp groups take tiles in turns: one multiplies while the other one writes its result.
  // Otherwise they have half of each tile's rows.
  static constexpr bool kPingPong = PingPong;
  static constexpr int kClusterM = ClusterM;  // blocks above each other, which share tiles of b
  static constexpr int kClusterN = ClusterN;  // blocks beside each other, which share tiles of a
  static constexpr int kSplit = Split;        // blocks that share the inner dim of a tile
  static constexpr int kBlocks = ClusterM * ClusterN * Split;  // of a cluster
  static constexpr int kRows = PingPong ? M : M / Consumers;   // of a warp group
  // Whether the product of each stage is made by itself, and then added: see core/wgmma.h on FP8.
  static constexpr bool kInParts = false;
  // Whether clusters share tiles where there are too few for all of them: see stream.cuh.
  static constexpr bool kStreams = false;
  static_assert(kRows % 64 == 0 && N % 64 == 0);
  static_assert(Split == 1 || (ClusterM * ClusterN == 1 && !PingPong));
  static_assert(!PingPong || Consumers == 2);
};

// A tile of which clusters can have parts.
template <class Tile>
struct Streamed : Tile {
  static constexpr bool kStreams = true;
  static_assert(!Tile::kPingPong && Tile::kSplit == 1);
};

struct HopperMaps {
  TensorMap a, b[2], in[kMostIn], out[kMostOut];
};

template <class Epilogue>
struct HopperParams {
  int m, n, k, batches;  // n: columns of the result
  int group;             // tiles of so many rows (or columns) are made together
  bool by_columns;       // walk down the columns first, not along the rows
  int ins, outs;         // matrices that the epilogue uses this time
  bool plain;            // their rows are not aligned, so tensor maps cannot describe them
  ProductMatrix in[kMostIn], out[kMostOut];
  ProductColumns columns[kMostColumns], rows;
  float* sums;  // (ceil(m / 64), n): sums of 64 rows of the first result, for kSums; or null
  Epilogue epilogue;
  ProductGroups groups;
  float* partial;  // for kStreams: the sums of parts of tiles
  int* counts;     // and how many are there, for each tile and warp group of a cluster
};

// In place of AllTiles below: the tiles of products with groups, see groups.cuh, and parts of
// tiles, see stream.cuh.
template <class Product>
struct GroupTiles;
template <class Product>
struct StreamTiles;

template <class T_, class Tile_, Major a_major, Major b_major, class Epilogue_,
          Groups groups = Groups::none>
struct HopperProduct {
  using T = T_;
  using Tile = Tile_;
  using Epilogue = Epilogue_;
  using Out = typename Epilogue::Out;
  using Params = HopperParams<Epilogue>;
  static constexpr Major kMajorA = a_major, kMajorB = b_major;
  static constexpr Groups kGroups = groups;

  static constexpr int kThreads = kWarpGroup * (1 + Tile::kConsumers);
  static constexpr int kInner = kTileWidth / int(sizeof(T));  // of a stage
  static constexpr int kBytesA = Tile::kM * kTileWidth, kBytesB = Tile::kN * kTileWidth;
  static constexpr int kStageBytes = kBytesA + kBytesB;
  // Columns of b that make one column of the result: a gate and a value, each from its own matrix.
  static constexpr int kParts = Epilogue::kParts;
  static constexpr int kCols = Tile::kN / kParts;  // of the result
  static constexpr int kRowBlocks = Tile::kRows / 64;

  // Whether the sums are multiplied by a factor per row and one per column before the epilogue gets
  // them. The latter are the last of the values per column.
  static constexpr bool kScales = requires { Epilogue::kScales; };
  using RowFactors = float[Tile::kRows / 64][2];  // those of a thread's values

  // A value per column of the result, for each of them (a bias), and those that the epilogue reads.
  static constexpr int kColumns = Epilogue::kColumns, kColumnsRead = kColumns - int(kScales);
  using Columns = float[std::max(kColumns, 1)][(kCols + kWarpGroup - 1) / kWarpGroup];

  // The result leaves in chunks of 64 rows x 128 bytes, 16 rows by each warp. Warps do not wait for
  // each other.
  static constexpr int kChunkCols = kTileWidth / int(sizeof(Out));
  static constexpr int kChunks = kCols / kChunkCols, kAllChunks = kRowBlocks * kChunks;
  static constexpr int kValues = 64 * kChunkCols / kWarpGroup;  // of a thread in a chunk
  // So many of them pass through the epilogue at once: more would not fit the registers.
  static constexpr int kStep = 8;
  static constexpr int kSlotRows = 16, kSlotBytes = kSlotRows * kTileWidth;
  static constexpr int kWarps = 4 * Tile::kConsumers;
  // Two chunks at a time, where there is memory: of warp groups that take turns, the epilogue takes
  // as long as the product or longer.
  static constexpr int kMatrices = std::max({1, Epilogue::kIn, Epilogue::kOut});
  static constexpr int kSlots = Tile::kPingPong ? 2 * kMatrices : std::max(2, kMatrices);
  static_assert(kCols % kChunkCols == 0);

  static constexpr int kSlotsBytes = kWarps * kSlots * kSlotBytes;
  static constexpr int kSumsBytes =
      Epilogue::kSums ? Tile::kConsumers * 4 * kChunkCols * int(sizeof(float)) : 0;
  static constexpr int kColumnsBytes = Tile::kConsumers * kColumns * kCols * int(sizeof(float));
  static constexpr int kMostShared = 232448 - 256;  // 227 KB less the barriers
  static constexpr int kStages =
      std::min(8, (kMostShared - kSlotsBytes - kSumsBytes - kColumnsBytes) / kStageBytes);
  static_assert(kStages >= 2);
  // Where blocks share the inner dim, their sums meet where the stages are: each block has a place
  // for what every block knows of its own chunks.
  static constexpr int kOwnChunks = (kRowBlocks * kChunks + Tile::kSplit - 1) / Tile::kSplit;
  static constexpr int kMeetingBytes = Tile::kSplit * Tile::kConsumers * kOwnChunks * kParts *
                                       kValues * kWarpGroup * int(sizeof(float));
  static_assert(Tile::kSplit == 1 || kMeetingBytes <= kStages * kStageBytes);

  struct Barriers {
    Barrier full[kStages], empty[kStages], in[kWarps][2];
    int comes_last[Tile::kConsumers];  // for kStreams: whether a warp group does, of all with a
                                       // part
  };
  static_assert(sizeof(Barriers) <= 256);
  static constexpr int kSlotsAt = kStages * kStageBytes, kSumsAt = kSlotsAt + kSlotsBytes;
  static constexpr int kColumnsAt = kSumsAt + kSumsBytes, kBarriersAt = kColumnsAt + kColumnsBytes;
  static constexpr int kSharedBytes = kBarriersAt + int(sizeof(Barriers));

  struct Shared {
    unsigned char* start;

    __device__ Shared() : start(dynamic_shared<kTileAlignment>()) {}
    __device__ unsigned char* a(int stage) const { return start + stage * kStageBytes; }
    __device__ unsigned char* b(int stage) const { return a(stage) + kBytesA; }
    __device__ unsigned char* slot(int warp, int i) const {
      return start + kSlotsAt + (warp * kSlots + i) * kSlotBytes;
    }
    __device__ float* sums(int consumer) const {
      return reinterpret_cast<float*>(start + kSumsAt) + consumer * 4 * kChunkCols;
    }
    __device__ float* column(int consumer, int i) const {
      return reinterpret_cast<float*>(start + kColumnsAt) + (consumer * kColumns + i) * kCols;
    }
    __device__ Barriers& barriers() const {
      return *reinterpret_cast<Barriers*>(start + kBarriersAt);
    }
  };

  // The tiles of this block, and of the inner dim its part.
  struct AllTiles {
    int tiles_m, tiles_n, tiles, step;  // counted in clusters
    int rank_m, rank_n;
    int inner_first, inner_count;  // stages

    __device__ explicit AllTiles(const Params& p) {
      const int rank = Tile::kBlocks == 1 ? 0 : cluster_rank();
      rank_m = Tile::kSplit > 1 ? 0 : rank / Tile::kClusterN;
      rank_n = Tile::kSplit > 1 ? 0 : rank % Tile::kClusterN;
      tiles_m = (p.m + Tile::kM * Tile::kClusterM - 1) / (Tile::kM * Tile::kClusterM);
      tiles_n = (p.n + kCols * Tile::kClusterN - 1) / (kCols * Tile::kClusterN);
      tiles = tiles_m * tiles_n * p.batches;
      step = int(gridDim.x) / Tile::kBlocks;
      const int stages = (p.k + kInner - 1) / kInner;
      const int share = (stages + Tile::kSplit - 1) / Tile::kSplit;
      const int part = Tile::kSplit > 1 ? rank : 0;
      inner_first = part * share;
      inner_count = max(0, min(stages, inner_first + share) - inner_first);
    }

    __device__ void locate(const Params& p, int tile, int& batch, int& row, int& col) const {
      const int in_batch = tiles_m * tiles_n;
      batch = tile / in_batch;
      int i, j;
      walk(p, tile - batch * in_batch, tiles_m, tiles_n, i, j);
      row = (i * Tile::kClusterM + rank_m) * Tile::kM;
      col = (j * Tile::kClusterN + rank_n) * kCols;
    }

    __device__ static void walk(const Params& p, int tile, int tiles_m, int tiles_n, int& row,
                                int& col) {
      walk_tiles(p.group, p.by_columns, tile, tiles_m, tiles_n, row, col);
    }

    __device__ int stages_of(const Params&, int) const { return inner_count; }
    __device__ int rows_end(const Params& p) const { return p.m; }
  };
  static_assert(kGroups == Groups::none || !(Tile::kInParts || Tile::kStreams));
  using Work =
      std::conditional_t<kGroups != Groups::none, GroupTiles<HopperProduct>,
                         std::conditional_t<Tile::kStreams, StreamTiles<HopperProduct>, AllTiles>>;

  // A position in the ring of stages.
  struct Position {
    int stage = 0;
    uint32_t phase = 0;

    __device__ void advance() {
      if (++stage == kStages) stage = 0, phase ^= 1;
    }
    __device__ void advance(int count) {
      const int to = stage + count;
      phase ^= uint32_t(to / kStages) & 1;
      stage = to % kStages;
    }
  };

  // --- the warp group that fetches ---------------------------------------------------------------

  // Fetches the part of an operand's tile that is this block's to fetch for `Sharers` blocks, which
  // are `mask`: boxes of `rows` outer indices.
  template <Major major, int Size, int Boxes, int Sharers>
  __device__ static void fetch(const TensorMap* maps, unsigned char* to, int outer, int part_size,
                               int inner, int batch, int rank, uint16_t mask, Barrier& full) {
    constexpr int kRows = Size / Boxes;
#pragma unroll
    for (int i = 0; i < Boxes; ++i) {
      if (Sharers > 1 && i % Sharers != rank) continue;
      const int part = i * kRows / part_size, at = outer + i * kRows - part * part_size;
      const int col = major == Major::inner ? inner : at, row = major == Major::inner ? at : inner;
      unsigned char* const box = to + i * kRows * kTileWidth;
      if constexpr (Sharers > 1) {
        tile_copy_to(mask, box, maps[part], col, row, batch, full);
      } else {
        tile_copy(box, maps[part], col, row, batch, full);
      }
    }
  }

  static constexpr int kBoxesA = kMajorA == Major::outer ? Tile::kM / 64 : Tile::kClusterN;
  static constexpr int kBoxesB =
      kMajorB == Major::outer ? Tile::kN / 64 : std::max(kParts, Tile::kClusterM);
  // Rows of the boxes: what the tensor maps of a and b are made for.
  static constexpr int kBoxRowsA = kMajorA == Major::outer ? kInner : Tile::kM / kBoxesA;
  static constexpr int kBoxRowsB = kMajorB == Major::outer ? kInner : Tile::kN / kBoxesB;

  // One thread fetches all stages of a tile.
  __device__ static void fetch_tile(const HopperMaps& maps, const Work& work, const Shared& s,
                                    int batch, int row, int col, Position& at) {
    const uint16_t mask_a =
        uint16_t(((1u << Tile::kClusterN) - 1) << work.rank_m * Tile::kClusterN);
    uint16_t mask_b = 0;
    for (int i = 0; i < Tile::kClusterM; ++i) {
      mask_b |= uint16_t(1u << (i * Tile::kClusterN + work.rank_n));
    }
    // Groups are parts of one matrix.
    const int batch_a = kGroups == Groups::none ? batch : 0;
    const int batch_b = kGroups == Groups::inner ? 0 : batch;
    Barriers& barriers = s.barriers();
    for (int i = 0; i < work.inner_count; ++i) {
      int inner = (work.inner_first + i) * kInner;
      if constexpr (kGroups == Groups::inner) inner += work.begin;
      wait(barriers.empty[at.stage], at.phase ^ 1);
      Barrier& full = barriers.full[at.stage];
      arrive_expecting(full, kStageBytes);
      fetch<kMajorA, Tile::kM, kBoxesA, Tile::kClusterN>(&maps.a, s.a(at.stage), row, Tile::kM,
                                                         inner, batch_a, work.rank_n, mask_a, full);
      fetch<kMajorB, Tile::kN, kBoxesB, Tile::kClusterM>(maps.b, s.b(at.stage), col, kCols, inner,
                                                         batch_b, work.rank_m, mask_b, full);
      at.advance();
    }
  }

  __device__ static void produce(const HopperMaps& maps, const Params& p, Work& work,
                                 const Shared& s) {
    Position at;
    for (int t = int(blockIdx.x) / Tile::kBlocks; t < work.tiles; t += work.step) {
      int batch, row, col;
      work.locate(p, t, batch, row, col);
      if (threadIdx.x == 0) fetch_tile(maps, work, s, batch, row, col, at);
      __syncwarp();                      // barriers of clusters are for whole warps
      if constexpr (Tile::kSplit > 1) {  // takes part in exchange()
        for (int i = 0; i < 3; ++i) cluster_sync();
      }
    }
  }

  // --- the warp groups that multiply -------------------------------------------------------------

  using Sums = float[kRowBlocks][Tile::kN / 2];

  // Frees a stage, here and where else its tiles come from.
  __device__ static void release(Barrier& empty) {
    constexpr int kSharers = Tile::kClusterM * Tile::kClusterN;
    if constexpr (kSharers > 1) {
      if (threadIdx.x % 32 < kSharers) arrive_at(empty, int(threadIdx.x % 32));
    } else {
      if (threadIdx.x % 32 == 0) arrive(empty);
    }
  }

  // Makes zeros of what an operand's stage has outside the inner indices `begin` to `end`.
  template <Major major, int Size>
  __device__ static void clear(unsigned char* stage, int begin, int end, int thread, int threads) {
    if constexpr (major == Major::outer) {
      constexpr int kPieces = kTileWidth / 16;
#pragma unroll 1
      for (int box = 0; box < Size / 64; ++box) {
#pragma unroll 1
        for (int i = thread; i < kInner * kPieces; i += threads) {
          const int inner = i / kPieces;
          if (inner >= begin && inner < end) continue;
          reinterpret_cast<int4*>(stage + box * kInner * kTileWidth)[i] = {};
        }
      }
    } else {
#pragma unroll 1
      for (int i = thread; i < Size * kInner; i += threads) {
        const int inner = i % kInner;
        if (inner >= begin && inner < end) continue;
        *reinterpret_cast<T*>(stage + swizzled(i / kInner, inner * int(sizeof(T)))) = T{};
      }
    }
  }

  // The last stage of a group reaches into the next one, and its first one may begin in the one
  // before. Their values must not count: 0 times NaN would. All who read the stage call it.
  __device__ static void cut(const Shared& s, int consumer, int stage, int begin, int end) {
    if (begin <= 0 && end >= kInner) return;
    constexpr int kThreads = Tile::kPingPong ? kWarpGroup : Tile::kConsumers * kWarpGroup;
    const int thread =
        int(threadIdx.x) % kWarpGroup + (Tile::kPingPong ? 0 : consumer) * kWarpGroup;
    clear<kMajorA, Tile::kM>(s.a(stage), begin, end, thread, kThreads);
    clear<kMajorB, Tile::kN>(s.b(stage), begin, end, thread, kThreads);
    fence_for_copies();  // products read as copies do
    kThreads == kWarpGroup ? sync_group(consumer) : sync_some(kOrder, kThreads);
  }

  __device__ static void clear(Sums& sums) {
#pragma unroll
    for (int r = 0; r < kRowBlocks; ++r) {
#pragma unroll
      for (int i = 0; i < Tile::kN / 2; ++i) sums[r][i] = 0.0f;
    }
  }

  // The product of a tile. `at` moves on by the stages it takes. begun() is called while the tensor
  // cores make the first one.
  template <class Begun>
  __device__ static void multiply(const Shared& s, const Work& work, int consumer, Position& at,
                                  Sums& sums, const Begun& begun) {
    const int count = work.inner_count;
    Barriers& barriers = s.barriers();
    const int first_row = Tile::kPingPong ? 0 : consumer * Tile::kRows;
    if (count == 0) {
      clear(sums);
      begun();
      return;
    }
    int before = 0;
    for (int i = 0; i < count; ++i) {
      wait(barriers.full[at.stage], at.phase);
      if constexpr (kGroups == Groups::inner) {
        cut(s, consumer, at.stage, work.first_valid(i), work.last_valid(i));
      }
      warpgroup_arrive();
#pragma unroll
      for (int step = 0; step < kTileWidth / kMultiplyBytes; ++step) {
        const TileOperand b = tile_operand<kMajorB>(s.b(at.stage), step, kInner * kTileWidth);
#pragma unroll
        for (int r = 0; r < kRowBlocks; ++r) {
          const unsigned char* const box = s.a(at.stage) + (first_row + 64 * r) * kTileWidth;
          warpgroup_multiply<T, Tile::kN, kMajorA, kMajorB>(
              sums[r], tile_operand<kMajorA>(box, step, kInner * kTileWidth), b, i > 0 || step > 0);
        }
      }
      warpgroup_commit();
      if (i == 0) {
        begun();
      } else {
        warpgroup_wait<1>();
        release(barriers.empty[before]);
      }
      before = at.stage;
      at.advance();
    }
    warpgroup_wait<0>();
#pragma unroll
    for (int r = 0; r < kRowBlocks; ++r) keep_in_place(sums[r]);
    release(barriers.empty[before]);
  }

  // The same, where the tensor cores sum over one stage at a time, and the stages are added here.
  __device__ static void multiply_in_parts(const Shared& s, int consumer, int count, Position& at,
                                           Sums& sums) {
    clear(sums);
    if constexpr (kRowBlocks > 1) {
      // While a warp group adds, another one multiplies.
#pragma unroll 1
      for (; count > 0; --count) {
        wait(s.barriers().full[at.stage], at.phase);
#pragma unroll
        for (int r = 0; r < kRowBlocks; ++r) {
          Part part;
          begin_part(s, consumer, at.stage, r, part);
          warpgroup_wait<0>();
          keep_in_place(part);
          if (r == kRowBlocks - 1) release(s.barriers().empty[at.stage]);
          add_part(part, sums[r]);
        }
        at.advance();
      }
    } else if (count > 0) {
      // There are registers for two parts: one is added while the tensor cores make the other.
      Part one, two;
      const auto begin = [&](Part& part) {
        wait(s.barriers().full[at.stage], at.phase);
        begin_part(s, consumer, at.stage, 0, part);
      };
      const auto add = [&](Part& part, int stage) {
        keep_in_place(part);
        release(s.barriers().empty[stage]);
        add_part(part, sums[0]);
      };
      const auto next = [&](Part& part, Part& before) {
        const int stage = at.stage;
        at.advance();
        begin(part);
        warpgroup_wait<1>();
        add(before, stage);
      };
      const auto last = [&](Part& part) {
        warpgroup_wait<0>();
        add(part, at.stage);
        at.advance();
      };
      begin(one);
      while (true) {
        if (--count == 0) return last(one);
        next(two, one);
        if (--count == 0) return last(two);
        next(one, two);
      }
    }
  }

  using Part = float[Tile::kN / 2];  // of the sums: those of 64 rows

  // Asks for the product of 64 rows of a stage.
  __device__ static void begin_part(const Shared& s, int consumer, int stage, int r, Part& part) {
    const int row = (Tile::kPingPong ? 0 : consumer * Tile::kRows) + 64 * r;
    const unsigned char* const box = s.a(stage) + row * kTileWidth;
    warpgroup_arrive();
#pragma unroll
    for (int step = 0; step < kTileWidth / kMultiplyBytes; ++step) {
      warpgroup_multiply<T, Tile::kN, kMajorA, kMajorB>(
          part, tile_operand<kMajorA>(box, step, kInner * kTileWidth),
          tile_operand<kMajorB>(s.b(stage), step, kInner * kTileWidth), step > 0);
    }
    warpgroup_commit();
  }

  __device__ static void add_part(const Part& part, Part& sums) {
#pragma unroll
    for (int i = 0; i < Tile::kN / 2; ++i) sums[i] += part[i];
  }

  // Asks for the factors of a thread's rows before the product is made.
  __device__ static void load_rows(const Params& p, int batch, int first_row, RowFactors& rows) {
    const int thread = int(threadIdx.x) % kWarpGroup;
#pragma unroll
    for (int i = 0; i < 2 * kRowBlocks; ++i) {
      const int row = first_row + i / 2 * 64 + i % 2 * 8 + thread / 32 * 16 + thread % 32 / 4;
      rows[i / 2][i % 2] = row < p.m ? p.rows.at(batch, row) : 0.0f;
    }
  }
  __device__ static void scale(const Shared& s, int consumer, const RowFactors& rows, Sums& sums) {
    const float* const factors = s.column(consumer, kColumns - 1) + threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < Tile::kN / 2; i += 4) {
      const float2 pair = *reinterpret_cast<const float2*>(factors + i * 2);
#pragma unroll
      for (int r = 0; r < kRowBlocks; ++r) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          sums[r][i + 2 * half] *= rows[r][half] * pair.x;  // one alone may overflow
          sums[r][i + 2 * half + 1] *= rows[r][half] * pair.y;
        }
      }
    }
  }

  // --- the epilogue ------------------------------------------------------------------------------

  // Asks for the values of the tile's columns before the product is made, and puts them to where
  // the epilogue reads them when it is.
  __device__ static void load_columns(const Params& p, int batch, int first_col, Columns& columns) {
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
#pragma unroll
      for (int j = 0; j * kWarpGroup < kCols; ++j) {
        const int col = j * kWarpGroup + int(threadIdx.x) % kWarpGroup;
        const bool there =
            col < kCols && first_col + col < p.n && (kGroups == Groups::none || batch < p.batches);
        columns[i][j] = there ? p.columns[i].at(batch, first_col + col) : 0.0f;
      }
    }
  }
  __device__ static void store_columns(const Shared& s, int consumer, const Columns& columns) {
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
#pragma unroll
      for (int j = 0; j * kWarpGroup < kCols; ++j) {
        const int col = j * kWarpGroup + int(threadIdx.x) % kWarpGroup;
        if (col < kCols) s.column(consumer, i)[col] = columns[i][j];
      }
    }
  }

  // Hides from the compiler where a value comes from, so that it does not keep what follows from it
  // in registers while the sums of the next tile need them.
  __device__ static int recompute(int value) {
#if !defined(OPFORGE_SIM)
    asm volatile("" : "+r"(value));
#endif
    return value;
  }

  // One warp's slots and what is in them.
  struct Slots {
    int consumer, warp, per_chunk;
    bool two_groups;
    int group = 0;
    uint32_t phase = 0;

    __device__ Slots(const Params& p, int consumer) : consumer(consumer) {
      // The shuffle tells the compiler that it is the same in all lanes.
      warp = __shfl_sync(0xffffffffu, int(threadIdx.x) / 32, 0) - 4;
      per_chunk = max(p.ins, p.outs);
      two_groups = 2 * per_chunk <= kSlots;
    }
    __device__ int first() const { return group * per_chunk; }
    __device__ void advance() {
      if (two_groups) group ^= 1;
      if (group == 0) phase ^= 1;
    }
  };

  __device__ static bool leads() { return threadIdx.x % 32 == 0; }
  __device__ static void sync_group(int consumer) { sync_some(1 + consumer, kWarpGroup); }

  // Until the slots that come next have been read by the stores from them. One thread calls it.
  __device__ static void await_slots(const Slots& slots) {
    slots.two_groups ? bulk_wait_read<1>() : bulk_wait_read<0>();
  }

  __device__ static void fetch_in(const HopperMaps& maps, const Params& p, const Shared& s,
                                  const Slots& slots, int batch, int row, int col) {
    Barrier& full = s.barriers().in[slots.warp][slots.group];
    arrive_expecting(full, uint32_t(p.ins * kSlotBytes));
#pragma unroll 1
    for (int i = 0; i < p.ins; ++i) {
      tile_copy(s.slot(slots.warp, slots.first() + i), maps.in[i], col, row, batch, full);
    }
  }

  // The chunks of a block begin here.
  __device__ static int first_chunk() { return Tile::kSplit > 1 ? cluster_rank() : 0; }

  // Asks for what the epilogue reads beside the first chunk of a tile.
  __device__ static void fetch_first(const HopperMaps& maps, const Params& p, const Shared& s,
                                     const Slots& slots, int batch, int tile_row, int tile_col) {
    const int i = first_chunk();
    if (Epilogue::kIn == 0 || p.ins == 0 || p.plain || !leads() || i >= kAllChunks) return;
    const int first_row = tile_row + (Tile::kPingPong ? 0 : slots.consumer * Tile::kRows);
    await_slots(slots);
    fetch_in(maps, p, s, slots, batch, first_row + i / kChunks * 64 + slots.warp % 4 * kSlotRows,
             tile_col + i % kChunks * kChunkCols);
  }

  using In = float[std::max(Epilogue::kIn, 1)][kStep];
  using ColumnValues = float[std::max(kColumnsRead, 1)][kStep];
  using Results = float[Epilogue::kOut][kStep];

  // A thread's place in the slots: with 16-bit results, that of the row which it names to
  // load_matrices() and store_matrices(), else of the first of its pairs.
  static constexpr bool kByMatrix = sizeof(Out) == 2;
  __device__ static int place_in_slot() {
    const int lane = int(threadIdx.x) % 32;
    if constexpr (kByMatrix) return swizzled(lane % 16, lane / 16 * 16);
    return swizzled(lane / 4, lane % 4 * 2 * int(sizeof(Out)));
  }

  struct alignas(2 * sizeof(Out)) Pair {
    Out value[2];
  };
  // Boxes are aligned, so that places further along a row differ in a few bits.
  __device__ static Pair& pair_at(unsigned char* slot, int place, int v) {
    const int along = v / 4 * 8 * int(sizeof(Out)), rows = v / 2 % 2 * 8;
    return *reinterpret_cast<Pair*>(slot + (place ^ along) + rows * kTileWidth);
  }

  // A step's values from a slot, and to it. `first` is the first of the step in the chunk.
  __device__ static void read_values(unsigned char* slot, int place, int first,
                                     float (&to)[kStep]) {
#pragma unroll
    for (int v = 0; v < kStep; v += kByMatrix ? 8 : 2) {
      if constexpr (kByMatrix) {
        uint32_t bits[4];
        load_matrices(bits, slot + (place ^ (first + v) / 8 * 32));
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          unpack_pair<Out>(bits[i], to[v + 2 * i], to[v + 2 * i + 1]);
        }
      } else {
        const Pair pair = pair_at(slot, place, first + v);
        to[v] = widen(pair.value[0]), to[v + 1] = widen(pair.value[1]);
      }
    }
  }
  __device__ static void write_values(unsigned char* slot, int place, int first,
                                      const float (&from)[kStep]) {
#pragma unroll
    for (int v = 0; v < kStep; v += kByMatrix ? 8 : 2) {
      if constexpr (kByMatrix) {
        uint32_t bits[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          bits[i] = pack_pair<Out>(from[v + 2 * i], from[v + 2 * i + 1]);
        }
        store_matrices(slot + (place ^ (first + v) / 8 * 32), bits);
      } else {
        pair_at(slot, place, first + v) = {narrow<Out>(from[v]), narrow<Out>(from[v + 1])};
      }
    }
  }

  // Rows of the accumulators share their column's value.
  __device__ static void read_columns(const Shared& s, int consumer, int first_col,
                                      ColumnValues& columns) {
#pragma unroll
    for (int i = 0; i < kColumnsRead; ++i) {
#pragma unroll
      for (int v = 0; v < kStep; v += 4) {
        const float2 pair = *reinterpret_cast<const float2*>(s.column(consumer, i) + first_col +
                                                             threadIdx.x % 4 * 2 + v * 2);
        columns[i][v] = columns[i][v + 2] = pair.x;
        columns[i][v + 1] = columns[i][v + 3] = pair.y;
      }
    }
  }

  // Matrices whose rows are not aligned are copied to and from the slots by the warp itself.
  // f gets a place in the matrix, or null beyond its end, and the one in the slot.
  template <class F>
  __device__ static void each_plain(const ProductMatrix& x, unsigned char* slot, const Params& p,
                                    int batch, int first_row, int first_col, int end, const F& f) {
    const int lane = int(threadIdx.x) % 32;
    Out* const data = static_cast<Out*>(x.data) + batch * x.batch_stride + first_col;
#pragma unroll 1
    for (int row = 0; row < kSlotRows; ++row) {
#pragma unroll 1
      for (int col = lane; col < kChunkCols; col += 32) {
        const bool there = first_row + row < end && first_col + col < p.n;
        f(there ? data + (first_row + row) * x.row_stride + col : nullptr,
          *reinterpret_cast<Out*>(slot + swizzled(row, col * int(sizeof(Out)))));
      }
    }
  }
  __device__ static void load_plain(const Params& p, const Shared& s, const Slots& slots, int batch,
                                    int row, int col) {
#pragma unroll 1
    for (int i = 0; i < p.ins; ++i) {
      each_plain(p.in[i], s.slot(slots.warp, slots.first() + i), p, batch, row, col, p.m,
                 [](const Out* from, Out& to) { to = from == nullptr ? Out{} : *from; });
    }
  }
  __device__ static void store_plain(const Params& p, const Shared& s, const Slots& slots,
                                     int batch, int row, int col, int end) {
#pragma unroll 1
    for (int i = 0; i < p.outs; ++i) {
      each_plain(p.out[i], s.slot(slots.warp, slots.first() + i), p, batch, row, col, end,
                 [](Out* to, const Out& from) {
                   if (to != nullptr) *to = from;
                 });
    }
  }

  // The rows of a chunk before `end`, where a tensor map would also write those of the next group.
  __device__ static void store_rows(const Params& p, const Shared& s, const Slots& slots, int row,
                                    int col, int end) {
#pragma unroll 1
    for (int i = 0; i < p.outs; ++i) {
      const unsigned char* const slot = s.slot(slots.warp, slots.first() + i);
      Out* const data = static_cast<Out*>(p.out[i].data) + col;
#pragma unroll 1
      for (int at = int(threadIdx.x) % 32 * 16; at < kSlotBytes; at += 32 * 16) {
        const int r = at / kTileWidth, c = at % kTileWidth / int(sizeof(Out));
        if (row + r >= end || col + c >= p.n) continue;
        *reinterpret_cast<int4*>(data + (row + r) * p.out[i].row_stride + c) =
            *reinterpret_cast<const int4*>(slot + swizzled(r, at % kTileWidth));
      }
    }
  }

  // Adds up the 64 rows of a chunk: first those of a warp.
  __device__ static void add_rows(const Shared& s, int consumer, int first,
                                  const float (&out)[kStep]) {
    const int warp = int(threadIdx.x) % kWarpGroup / 32, lane = int(threadIdx.x) % 32;
    float* const to = s.sums(consumer) + warp * kChunkCols;
#pragma unroll
    for (int v = 0; v < kStep; v += 4) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float sum = out[v + e] + out[v + e + 2];
#pragma unroll
        for (int other = 4; other < 32; other *= 2) {
          sum += __shfl_xor_sync(0xffffffffu, sum, other);
        }
        if (lane < 4) to[(first + v) / 4 * 8 + lane * 2 + e] = sum;
      }
    }
  }

  __device__ static void store_sums(const Params& p, const Shared& s, int consumer, int first_row,
                                    int first_col) {
    const int col = int(threadIdx.x) % kWarpGroup;
    if (col >= kChunkCols || first_col + col >= p.n || first_row >= p.m) return;
    const float* const from = s.sums(consumer) + col;
    p.sums[int64_t(first_row / 64) * p.n + first_col + col] =
        (from[0] + from[kChunkCols]) + (from[2 * kChunkCols] + from[3 * kChunkCols]);
  }

  // The sums of a chunk: the registers themselves where it is known which one.
  __device__ static void pick(const Sums& sums, int chunk, float (&to)[kParts][kValues]) {
#pragma unroll
    for (int i = 0; i < kAllChunks; ++i) {
      if (i != chunk) continue;
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
#pragma unroll
        for (int v = 0; v < kValues; ++v) {
          to[part][v] = sums[i / kChunks][part * kCols / 2 + i % kChunks * kValues + v];
        }
      }
    }
  }

  // How many matrices a transform reads and writes, if it says so: see epilogue.cuh.
  template <class Transform>
  static constexpr bool kKnown = requires { Transform::kOuts; };

  // One step of a chunk, from the slots and the registers to the slots.
  template <class Transform>
  __device__ __forceinline__ static void transform_step(const Transform& transform, const Params& p,
                                                        const Shared& s, const Slots& slots,
                                                        int in_slot, int first,
                                                        const float (&chunk)[kParts][kValues],
                                                        const ColumnValues& columns) {
    int ins = p.ins, outs = p.outs;
    if constexpr (kKnown<Transform>) ins = Transform::kIns, outs = Transform::kOuts;
    const auto slot = [&](int i) { return s.slot(slots.warp, slots.first() + i); };
    float values[kParts][kStep];
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int v = 0; v < kStep; ++v) values[part][v] = chunk[part][first + v];
    }
    In in;
#pragma unroll
    for (int j = 0; j < Epilogue::kIn; ++j) {
      if (j < ins) read_values(slot(j), in_slot, first, in[j]);
    }
    Results out;
    transform(values, in, columns, out);
#pragma unroll
    for (int j = 0; j < Epilogue::kOut; ++j) {
      if (j < outs) write_values(slot(j), in_slot, first, out[j]);
    }
    if constexpr (Epilogue::kSums) {
      if (p.sums != nullptr) add_rows(s, slots.consumer, first, out[0]);
    }
  }

  // The result of a tile: all chunks of a warp group, or with kSplit those that are this block's.
  // Rows from `end` on are not this tile's. `transform` is the epilogue without run-time choices.
  // The code of a short one is there for each chunk, with its registers. Of others there is one
  // copy for all chunks, which stays in the instruction cache.
  template <class Transform>
  __device__ __forceinline__ static void finish(const Transform& transform, const HopperMaps& maps,
                                                const Params& p, const Shared& s, Slots& slots,
                                                int batch, int tile_row, int tile_col, int end,
                                                const Sums& sums) {
    constexpr bool kShort = kKnown<Transform> && Tile::kSplit == 1;
    constexpr bool kEarly = kShort && kColumns <= 1;  // more would not fit the registers
    constexpr int kCopies = kShort ? kAllChunks : 1;
    int ins = p.ins, outs = p.outs;
    if constexpr (kKnown<Transform>) ins = Transform::kIns, outs = Transform::kOuts;
    const bool plain = kKnown<Transform> ? false : p.plain;
    const int consumer = slots.consumer;
    const int in_slot = recompute(place_in_slot());
    const int first_row = tile_row + (Tile::kPingPong ? 0 : consumer * Tile::kRows);
    const bool fetches = Epilogue::kIn > 0 && ins > 0 && !plain;
    const int warp_row = slots.warp % 4 * kSlotRows;
    const auto row_of = [&](int i) { return first_row + i / kChunks * 64 + warp_row; };
    const auto col_of = [&](int i) { return tile_col + i % kChunks * kChunkCols; };
#pragma unroll kCopies
    for (int i = first_chunk(); i < kAllChunks; i += Tile::kSplit) {
      const int row = row_of(i), col = col_of(i), in_tile = i % kChunks * kChunkCols;
      float chunk[kParts][kValues];
      pick(sums, i, chunk);
      // Those of a short transform are asked for before it waits.
      ColumnValues columns[kEarly ? kValues / kStep : 1];
      if constexpr (kEarly) {
#pragma unroll
        for (int j = 0; j < kValues / kStep; ++j) {
          read_columns(s, consumer, in_tile + j * kStep * 2, columns[j]);
        }
      }
      if (fetches) {
        wait(s.barriers().in[slots.warp][slots.group], slots.phase);
      } else {
        if (plain) {
          load_plain(p, s, slots, batch, row, col);
        } else if (leads()) {
          await_slots(slots);
        }
        __syncwarp();
      }
#pragma unroll
      for (int first = 0; first < kValues; first += kStep) {
        if constexpr (!kEarly) read_columns(s, consumer, in_tile + first * 2, columns[0]);
        transform_step(transform, p, s, slots, in_slot, first, chunk,
                       columns[kEarly ? first / kStep : 0]);
      }
      fence_for_copies();
      __syncwarp();
      if (plain) {
        store_plain(p, s, slots, batch, row, col, end);
        __syncwarp();
      } else if (kGroups == Groups::rows && row + kSlotRows > end) {
        store_rows(p, s, slots, row, col, end);
        __syncwarp();
        if (leads()) bulk_commit();  // of nothing: await_slots() counts chunks
      } else if (leads()) {
#pragma unroll
        for (int j = 0; j < Epilogue::kOut; ++j) {
          if (j < outs) {
            tile_store(maps.out[j], col, row, batch, s.slot(slots.warp, slots.first() + j));
          }
        }
        bulk_commit();
      }
      if constexpr (Epilogue::kSums) {
        if (p.sums != nullptr) {
          sync_group(consumer);
          store_sums(p, s, consumer, row - warp_row, col);
          sync_group(consumer);
        }
      }
      slots.advance();
      if (fetches && leads() && i + Tile::kSplit < kAllChunks) {
        await_slots(slots);
        fetch_in(maps, p, s, slots, batch, row_of(i + Tile::kSplit), col_of(i + Tile::kSplit));
      }
    }
  }

  // Blocks that share the inner dim of a tile: each gets the sums of its chunks from all, and adds
  // them in the order of their ranks.
  __device__ static void exchange(const Shared& s, int consumer, Sums& sums) {
    constexpr int kAll = kAllChunks;
    const int rank = cluster_rank(), thread = int(threadIdx.x) % kWarpGroup;
    const auto place = [&](int from, int chunk, int v) {
      return reinterpret_cast<float*>(s.start) +
             (((from * Tile::kConsumers + consumer) * kOwnChunks + chunk / Tile::kSplit) * kParts *
                  kValues +
              v) *
                 kWarpGroup +
             thread;
    };
    const auto value = [&](int chunk, int v) -> float& {
      return sums[chunk / kChunks]
                 [v / kValues * kCols / 2 + chunk % kChunks * kValues + v % kValues];
    };
    cluster_sync();  // everybody has multiplied: the stages are free
#pragma unroll
    for (int i = 0; i < kAll; ++i) {
      const int owner = i % Tile::kSplit;
      if (owner == rank) continue;
#pragma unroll
      for (int v = 0; v < kParts * kValues; ++v) *in_block(place(rank, i, v), owner) = value(i, v);
    }
    cluster_sync();
#pragma unroll
    for (int i = 0; i < kAll; ++i) {
      if (i % Tile::kSplit != rank) continue;
#pragma unroll
      for (int v = 0; v < kParts * kValues; ++v) {
        float sum = 0.0f;
#pragma unroll
        for (int from = 0; from < Tile::kSplit; ++from) {
          sum += from == rank ? value(i, v) : *place(from, i, v);
        }
        value(i, v) = sum;
      }
    }
    fence_for_copies();  // copies land there next
    cluster_sync();
  }

  static constexpr int kOrder = 1 + Tile::kConsumers;  // ids of barriers, see consume()

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
      Columns columns;
      load_columns(p, batch, col, columns);
      RowFactors rows;
      if constexpr (kScales) {
        load_rows(p, batch, row + (Tile::kPingPong ? 0 : consumer * Tile::kRows), rows);
      }
      if constexpr (Tile::kPingPong) sync_some(kOrder + consumer, 2 * kWarpGroup);
      // What the epilogue reads is put to where it does that.
      const int batch_out = kGroups == Groups::rows ? 0 : batch;
      const auto begun = [&] {
        if constexpr (!Tile::kStreams) fetch_first(maps, p, s, slots, batch_out, row, col);
        if constexpr (kColumns > 0) {
          sync_group(consumer);  // all warps have read those of the last tile
          store_columns(s, consumer, columns);
          sync_group(consumer);
        }
      };
      Sums sums;
      if constexpr (Tile::kStreams) clear(sums);  // else the compiler loses sight of these registers
      if constexpr (Tile::kInParts) {
        begun();
        multiply_in_parts(s, consumer, work.inner_count, at, sums);
      } else {
        multiply(s, work, consumer, at, sums, begun);
      }
      if constexpr (Tile::kPingPong) {
        if (t + work.step < work.tiles) arrive_some(kOrder + 1 - consumer, 2 * kWarpGroup);
        at.advance(work.stages_of(p, t + work.step));
      }
      if constexpr (Tile::kSplit > 1) exchange(s, consumer, sums);
      if constexpr (Tile::kStreams) {
        if (!combine_parts(p, work, s, consumer, sums)) continue;
        fetch_first(maps, p, s, slots, batch_out, row, col);
      }
      if constexpr (kScales) scale(s, consumer, rows, sums);
      p.epilogue.choose(p, [&](const auto& transform) {
        finish(transform, maps, p, s, slots, batch_out, row, col, end, sums);
      });
    }
    if (leads()) bulk_wait_read<0>();
  }

  // ----------------------------------------------------------------------------------------------

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
