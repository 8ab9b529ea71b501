// SPDX-License-Identifier: Apache-2.0
// How a block of families/product/hopper.cuh is laid out: what a tile of the result is, how many
// stages of operands fit into shared memory and what else is there, and which values of the result
// a thread has. The parts of the kernel are classes over a layout, which inherit its names; their
// functions are static, but for those of HopperSlots. Includes no torch header.
#pragma once

#include <cuda_runtime.h>
#include <opforge/core/async.h>
#include <opforge/core/cluster.h>
#include <opforge/core/shared.h>
#include <opforge/core/tensor_map.h>
#include <opforge/core/warpgroup.h>
#include <opforge/core/wgmma.h>
#include <opforge/families/product/call.h>

#include <algorithm>
#include <cstdint>

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

template <class T_, class Tile_, Major a_major, Major b_major, class Epilogue_, Groups groups>
struct HopperLayout {
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
  using Sums = float[kRowBlocks][Tile::kN / 2];  // those of a thread

  static constexpr int kBoxesA = kMajorA == Major::outer ? Tile::kM / 64 : Tile::kClusterN;
  static constexpr int kBoxesB =
      kMajorB == Major::outer ? Tile::kN / 64 : std::max(kParts, Tile::kClusterM);
  // Rows of the boxes: what the tensor maps of a and b are made for.
  static constexpr int kBoxRowsA = kMajorA == Major::outer ? kInner : Tile::kM / kBoxesA;
  static constexpr int kBoxRowsB = kMajorB == Major::outer ? kInner : Tile::kN / kBoxesB;

  // Whether the sums are multiplied by a factor per row and one per column before the epilogue gets
  // them. The latter are the last of the values per column.
  static constexpr bool kScales = requires { Epilogue::kScales; };

  // A value per column of the result, for each of them (a bias), and those that the epilogue reads.
  static constexpr int kColumns = Epilogue::kColumns, kColumnsRead = kColumns - int(kScales);

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
    int comes_last[Tile::kConsumers];  // for kStreams: whether a warp group does, of all that have
                                       // a part of the tile
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

  // Barriers of a block have ids: each warp group that multiplies has one for itself. From kOrder
  // on there are those by which they take turns.
  __device__ static void sync_group(int consumer) { sync_some(1 + consumer, kWarpGroup); }
  static constexpr int kOrder = 1 + Tile::kConsumers;

  // Whether a thread is the one of its warp that asks for copies and stores.
  __device__ static bool leads() { return threadIdx.x % 32 == 0; }

  // Blocks with kSplit take turns at the chunks of a tile. The first one of this block:
  __device__ static int first_chunk() { return Tile::kSplit > 1 ? cluster_rank() : 0; }
};

}  // namespace opforge
