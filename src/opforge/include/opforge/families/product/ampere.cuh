// SPDX-License-Identifier: Apache-2.0
// c = epilogue(a b) on the tensor cores of compute capability 8.0 (mma.sync), which newer GPUs have
// as well. Hopper has faster ones: see hopper.cuh. Includes no torch header.
//
// A block makes a tile of 128 x 128. All of its 8 warps ask for pieces of a and b, into a ring of
// three stages in shared memory, and multiply 64 x 32 each. Then each writes its own part of the
// result, 16 rows at a time, by way of shared memory.
//
// Bytes: a, b and the result once, if L2 holds what neighbouring tiles share. Operations: 2 m n k.
// A tile does 64 operations for each byte of 16-bit operands that it fetches from L2. A warp reads
// 96 bytes of shared memory for 1024 multiplications of such operands.
#pragma once

#include <cuda_runtime.h>
#include <opforge/core/async.h>
#include <opforge/core/matrices.h>
#include <opforge/core/mma.h>
#include <opforge/core/pieces.h>
#include <opforge/core/shared.h>
#include <opforge/core/tensor_map.h>
#include <opforge/core/types.h>
#include <opforge/families/product/call.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <opforge/families/product/order.cuh>

namespace opforge {

template <class Epilogue>
struct AmpereParams {
  int m, n, k;           // n: columns of the result
  int tiles_m, tiles_n;  // of each batch
  int group;             // the order of the tiles, see order.cuh
  bool by_columns;
  int ins, outs;  // matrices that the epilogue uses this time
  bool plain;     // their rows are not aligned to 16 bytes
  ProductOperand a, b[2];
  ProductMatrix in[kMostIn], out[kMostOut];
  ProductColumns columns[kMostColumns];
  float* sums;  // (ceil(m / 64), n): sums of 64 rows of the first result, for kSums; or null
  Epilogue epilogue;
};

template <class T_, Major a_major, Major b_major, class Epilogue_>
struct AmpereProduct {
  using T = T_;
  using Epilogue = Epilogue_;
  using Out = typename Epilogue::Out;
  using Params = AmpereParams<Epilogue>;
  static constexpr Major kMajorA = a_major, kMajorB = b_major;
  static_assert(sizeof(T) == 2 || (a_major == Major::inner && b_major == Major::inner));
  static_assert(!requires { Epilogue::kScales; });

  // Of a block, and of a warp.
  static constexpr int kM = 128, kN = 128, kWarpM = 64, kWarpN = 32;
  static constexpr int kWarpsN = kN / kWarpN, kWarps = kM / kWarpM * kWarpsN;
  static constexpr int kThreads = 32 * kWarps;
  // Columns of b that make one column of the result: a gate and a value, each from its own matrix.
  static constexpr int kParts = Epilogue::kParts;
  static constexpr int kCols = kN / kParts, kWarpCols = kWarpN / kParts;  // of the result

  // Operands lie in shared memory as the boxes of core/tensor_map.h: rows of 128 bytes, swizzled.
  // Inner-major ones have an outer index per row, outer-major ones 64 of them along each row.
  static constexpr int kInner = kTileWidth / int(sizeof(T));  // of a stage
  static constexpr int kOutersPerBox = kTileWidth / int(sizeof(T));
  static constexpr int kBytesA = kM * kTileWidth, kStageBytes = (kM + kN) * kTileWidth;
  static constexpr int kStages = 3;
  static constexpr int kColumns = Epilogue::kColumns;
  static constexpr int kColumnsAt = kStages * kStageBytes;
  static constexpr int kSharedBytes = kColumnsAt + kColumns * kCols * int(sizeof(float));
  static_assert(kSharedBytes <= 99 * 1024);  // what GPUs of 8.6 and 8.9 have

  // The epilogue's matrices: a warp has 16 rows of each in shared memory, where the stages were.
  // The pitch spreads the rows over all banks.
  static constexpr int kSlotRows = 16;
  static constexpr int kSlotPitch = (kWarpCols + 8) * int(sizeof(Out));
  static constexpr int kSlotBytes = kSlotRows * kSlotPitch;
  static constexpr int kSlots = std::max(Epilogue::kIn, Epilogue::kOut);
  static_assert(kWarps * kSlots * kSlotBytes <= kStages * kStageBytes);
  // So many values of a thread pass through the epilogue at once: those of 16 columns.
  static constexpr int kStep = 8, kStepCols = 16;
  static_assert(kWarpCols % kStepCols == 0);

  using Sums = float[kWarpM / 16][kWarpN / 8][4];  // as core/mma.h has them

  // --- the product -------------------------------------------------------------------------------

  // Where an element of an operand is in its stage.
  template <Major major>
  __device__ static int place(int outer, int inner) {
    if constexpr (major == Major::inner) return swizzled(outer, inner * int(sizeof(T)));
    return outer / kOutersPerBox * kInner * kTileWidth +
           swizzled(inner, outer % kOutersPerBox * int(sizeof(T)));
  }

  // Asks for `Size` outer indices of a stage, from `outer` and `inner` on. Beyond the operand,
  // which has `outers` and `inners`, there are zeros.
  template <Major major, int Size>
  __device__ static void fetch(const ProductOperand& x, unsigned char* to, int batch, int outer,
                               int outers, int inner, int inners) {
    constexpr bool kByInner = major == Major::inner;
    constexpr int kPerPiece = kPieceBytes / int(sizeof(T));
    constexpr int kPieces = (kByInner ? kInner : Size) / kPerPiece;  // of a row in memory
    constexpr int kAll = (kByInner ? Size : kInner) * kPieces;
    static_assert(kAll % kThreads == 0);
    const T* const data = static_cast<const T*>(x.data) + batch * x.batch_stride;
#pragma unroll
    for (int j = 0; j < kAll / kThreads; ++j) {
      const int i = j * kThreads + int(threadIdx.x);
      const int across = i / kPieces, along = i % kPieces * kPerPiece;
      const int o = kByInner ? across : along, in = kByInner ? along : across;
      const int row = kByInner ? outer + o : inner + in, rows = kByInner ? outers : inners;
      const int col = kByInner ? inner + in : outer + o, cols = kByInner ? inners : outers;
      const int there = row < rows ? max(0, min(kPerPiece, cols - col)) : 0;
      const T* const from = there > 0 ? data + row * x.stride + col : data;
      piece_copy(to + place<major>(o, in), from, there * int(sizeof(T)));
    }
  }

  __device__ static void fetch_stage(const Params& p, unsigned char* stage, int batch, int row,
                                     int col, int inner) {
    fetch<kMajorA, kM>(p.a, stage, batch, row, p.m, inner, p.k);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      unsigned char* const to = stage + kBytesA + part * kCols * kTileWidth;
      fetch<kMajorB, kCols>(p.b[part], to, batch, col, p.n, inner, p.k);
    }
  }

  // Four registers of an operand, of 16 outer indices and 32 bytes along the inner dim. Matrices of
  // 8 x 8 follow each other along the outer dim first, or along the inner one.
  template <Major major, bool outer_first>
  __device__ static void load(uint32_t (&to)[4], const unsigned char* tile, int outer, int inner) {
    const int lane = int(threadIdx.x) % 32, row = lane % 8, low = lane / 8 % 2, high = lane / 16;
    const int o = 8 * (outer_first ? low : high), i = outer_first ? high : low;
    if constexpr (major == Major::inner) {
      constexpr int kPerPiece = kPieceBytes / int(sizeof(T));
      load_matrices(to, tile + place<major>(outer + o + row, inner + i * kPerPiece));
    } else {
      load_matrices<true>(to, tile + place<major>(outer + o, inner + i * 8 + row));
    }
    if constexpr (sizeof(T) == 4) {
#pragma unroll
      for (uint32_t& bits : to) {
        float value;
        memcpy(&value, &bits, sizeof value);
        bits = to_tf32(value);
      }
    }
  }

  struct Fragments {
    uint32_t a[kWarpM / 16][4], b[kWarpN / 8][2];
  };

  // What a warp multiplies in a step along the inner dim.
  __device__ static void load_step(Fragments& to, const unsigned char* stage, int step) {
    const int warp = int(threadIdx.x) / 32, inner = step * kMultiplyBytes / int(sizeof(T));
#pragma unroll
    for (int i = 0; i < kWarpM / 16; ++i) {
      load<kMajorA, true>(to.a[i], stage, warp / kWarpsN * kWarpM + 16 * i, inner);
    }
#pragma unroll
    for (int i = 0; i < kWarpN / 16; ++i) {
      const int part = 16 * i / kWarpCols, col = 16 * i % kWarpCols;
      const unsigned char* const tile = stage + kBytesA + part * kCols * kTileWidth;
      uint32_t both[4];
      load<kMajorB, false>(both, tile, warp % kWarpsN * kWarpCols + col, inner);
      to.b[2 * i][0] = both[0], to.b[2 * i][1] = both[1];
      to.b[2 * i + 1][0] = both[2], to.b[2 * i + 1][1] = both[3];
    }
  }

  // The operands of a step are on their way while those of the one before are multiplied.
  __device__ static void multiply_stage(const unsigned char* stage, Sums& sums) {
    constexpr int kSteps = kTileWidth / kMultiplyBytes;
    Fragments fragments[2];
    load_step(fragments[0], stage, 0);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (step + 1 < kSteps) load_step(fragments[(step + 1) % 2], stage, step + 1);
      const Fragments& now = fragments[step % 2];
#pragma unroll
      for (int i = 0; i < kWarpM / 16; ++i) {
#pragma unroll
        for (int j = 0; j < kWarpN / 8; ++j) warp_multiply<T>(sums[i][j], now.a[i], now.b[j]);
      }
    }
  }

  __device__ static void multiply(const Params& p, unsigned char* start, int batch, int row,
                                  int col, Sums& sums) {
#pragma unroll
    for (auto& across : sums) {
#pragma unroll
      for (auto& four : across) four[0] = four[1] = four[2] = four[3] = 0.0f;
    }
    const int count = (p.k + kInner - 1) / kInner;
    const auto fetch_one = [&](int i) {
      if (i < count) fetch_stage(p, start + i % kStages * kStageBytes, batch, row, col, i * kInner);
      piece_commit();
    };
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) fetch_one(i);
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      piece_wait<kStages - 2>();
      __syncthreads();  // this stage has come for all, and all have read the one before
      fetch_one(i + kStages - 1);
      multiply_stage(start + i % kStages * kStageBytes, sums);
    }
    piece_wait<0>();
    __syncthreads();
  }

  // --- the epilogue ------------------------------------------------------------------------------

  __device__ static void load_columns(const Params& p, float* to, int batch, int first_col) {
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      for (int col = int(threadIdx.x); col < kCols; col += kThreads) {
        const bool there = first_col + col < p.n;
        to[i * kCols + col] = there ? p.columns[i].at(batch, first_col + col) : 0.0f;
      }
    }
  }

  // Calls f with each piece of a warp's part of a matrix: where it is there, where in the slot, and
  // how many of its elements the matrix has.
  template <class F>
  __device__ static void each_piece(const ProductMatrix& x, unsigned char* slot, const Params& p,
                                    int batch, int first_row, int first_col, const F& f) {
    constexpr int kPer = kPieceBytes / int(sizeof(Out)), kPieces = kWarpCols / kPer;
    static_assert(kSlotRows * kPieces % 32 == 0);
    Out* const data = static_cast<Out*>(x.data) + batch * x.batch_stride;
#pragma unroll
    for (int i = int(threadIdx.x) % 32; i < kSlotRows * kPieces; i += 32) {
      const int r = i / kPieces, c = i % kPieces * kPer;
      const int row = first_row + r, col = first_col + c;
      const int there = row < p.m ? max(0, min(kPer, p.n - col)) : 0;
      Out* const in_slot = reinterpret_cast<Out*>(slot + r * kSlotPitch + c * int(sizeof(Out)));
      f(there > 0 ? data + row * x.row_stride + col : data, in_slot, there);
    }
  }

  __device__ static void load_part(const ProductMatrix& x, unsigned char* slot, const Params& p,
                                   int batch, int row, int col) {
    constexpr int kPer = kPieceBytes / int(sizeof(Out));
    each_piece(x, slot, p, batch, row, col, [&](const Out* from, Out* to, int there) {
      if (there == kPer && !p.plain) {
        *reinterpret_cast<int4*>(to) = *reinterpret_cast<const int4*>(from);
        return;
      }
#pragma unroll 1
      for (int e = 0; e < kPer; ++e) to[e] = e < there ? from[e] : Out{};
    });
  }

  __device__ static void store_part(const ProductMatrix& x, unsigned char* slot, const Params& p,
                                    int batch, int row, int col) {
    constexpr int kPer = kPieceBytes / int(sizeof(Out));
    each_piece(x, slot, p, batch, row, col, [&](Out* to, const Out* from, int there) {
      if (there == kPer && !p.plain) {
        *reinterpret_cast<int4*>(to) = *reinterpret_cast<const int4*>(from);
        return;
      }
#pragma unroll 1
      for (int e = 0; e < there; ++e) to[e] = from[e];
    });
  }

  struct alignas(2 * sizeof(Out)) Pair {
    Out value[2];
  };
  // A thread's pair v / 2 of a step, in a slot. `first` is the step's first column.
  __device__ static Pair& pair_at(unsigned char* slot, int first, int v) {
    const int lane = int(threadIdx.x) % 32;
    const int row = lane / 4 + v / 2 % 2 * 8, col = first + v / 4 * 8 + lane % 4 * 2;
    return *reinterpret_cast<Pair*>(slot + row * kSlotPitch + col * int(sizeof(Out)));
  }

  using Chunk = float[kWarpN / 8][4];
  using In = float[std::max(Epilogue::kIn, 1)][kStep];
  using ColumnValues = float[std::max(kColumns, 1)][kStep];
  using Results = float[Epilogue::kOut][kStep];
  using ColumnSums = float[kWarpCols / 8][2];

  // The sums of 16 rows: the registers themselves, because those of an array have no index.
  __device__ static void pick(const Sums& sums, int which, Chunk& to) {
#pragma unroll
    for (int i = 0; i < kWarpM / 16; ++i) {
      if (i != which) continue;
#pragma unroll
      for (int j = 0; j < kWarpN / 8; ++j) {
#pragma unroll
        for (int v = 0; v < 4; ++v) to[j][v] = sums[i][j][v];
      }
    }
  }

  // One step, from the slots and the registers to the slots. Its values are in the order of those
  // of hopper.cuh. `columns` begins with the warp's first one.
  template <class Transform>
  __device__ __forceinline__ static void transform_step(const Transform& transform, int ins,
                                                        int outs, unsigned char* slots, int first,
                                                        const Chunk& chunk, const float* columns,
                                                        ColumnSums& column_sums) {
    const int lane = int(threadIdx.x) % 32;
    float values[kParts][kStep];
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int v = 0; v < kStep; ++v) {
        values[part][v] = chunk[(part * kWarpCols + first) / 8 + v / 4][v % 4];
      }
    }
    ColumnValues of_columns;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
#pragma unroll
      for (int v = 0; v < kStep; ++v) {
        of_columns[i][v] = columns[i * kCols + first + v / 4 * 8 + lane % 4 * 2 + v % 2];
      }
    }
    In in;
#pragma unroll
    for (int j = 0; j < Epilogue::kIn; ++j) {
      if (j >= ins) continue;
#pragma unroll
      for (int v = 0; v < kStep; v += 2) {
        const Pair pair = pair_at(slots + j * kSlotBytes, first, v);
        in[j][v] = widen(pair.value[0]), in[j][v + 1] = widen(pair.value[1]);
      }
    }
    Results out;
    transform(values, in, of_columns, out);
#pragma unroll
    for (int j = 0; j < Epilogue::kOut; ++j) {
      if (j >= outs) continue;
#pragma unroll
      for (int v = 0; v < kStep; v += 2) {
        pair_at(slots + j * kSlotBytes, first, v) = {narrow<Out>(out[j][v]),
                                                     narrow<Out>(out[j][v + 1])};
      }
    }
    if constexpr (Epilogue::kSums) {
#pragma unroll
      for (int v = 0; v < kStep; ++v) column_sums[first / 8 + v / 4][v % 2] += out[0][v];
    }
  }

  // Adds up the lanes that have the same columns, and writes the sums of the warp's 64 rows.
  __device__ static void store_sums(const Params& p, const ColumnSums& column_sums, int row,
                                    int first_col) {
    static_assert(kWarpM == 64);
    const int lane = int(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < kWarpCols / 8; ++i) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float sum = column_sums[i][e];
#pragma unroll
        for (int other = 4; other < 32; other *= 2) {
          sum += __shfl_xor_sync(0xffffffffu, sum, other);
        }
        const int col = first_col + i * 8 + lane * 2 + e;
        if (lane < 4 && row < p.m && col < p.n) p.sums[int64_t(row / 64) * p.n + col] = sum;
      }
    }
  }

  // The result of a warp. `transform` is the epilogue without run-time choices; there is one copy
  // of its code for all rows, which stays in the instruction cache.
  template <class Transform>
  __device__ __forceinline__ static void finish(const Transform& transform, const Params& p,
                                                unsigned char* start, int batch, int tile_row,
                                                int tile_col, const Sums& sums) {
    int ins = p.ins, outs = p.outs;
    if constexpr (requires { Transform::kOuts; }) ins = Transform::kIns, outs = Transform::kOuts;
    const int warp = int(threadIdx.x) / 32;
    const int in_tile = warp % kWarpsN * kWarpCols;
    const int first_row = tile_row + warp / kWarpsN * kWarpM, col = tile_col + in_tile;
    unsigned char* const slots = start + warp * kSlots * kSlotBytes;
    const float* const columns = reinterpret_cast<const float*>(start + kColumnsAt) + in_tile;
    ColumnSums column_sums = {};
#pragma unroll 1
    for (int i = 0; i < kWarpM / 16; ++i) {
      const int row = first_row + 16 * i;
      Chunk chunk;
      pick(sums, i, chunk);
#pragma unroll
      for (int j = 0; j < Epilogue::kIn; ++j) {
        if (j < ins) load_part(p.in[j], slots + j * kSlotBytes, p, batch, row, col);
      }
      __syncwarp();
#pragma unroll
      for (int first = 0; first < kWarpCols; first += kStepCols) {
        transform_step(transform, ins, outs, slots, first, chunk, columns, column_sums);
      }
      __syncwarp();
#pragma unroll
      for (int j = 0; j < Epilogue::kOut; ++j) {
        if (j < outs) store_part(p.out[j], slots + j * kSlotBytes, p, batch, row, col);
      }
      __syncwarp();
    }
    if constexpr (Epilogue::kSums) {
      if (p.sums != nullptr) store_sums(p, column_sums, first_row, col);
    }
  }

  // ----------------------------------------------------------------------------------------------

  __device__ static void run(const Params& p) {
    unsigned char* const start = dynamic_shared<kTileAlignment>();
    const int in_batch = p.tiles_m * p.tiles_n, batch = int(blockIdx.x) / in_batch;
    int i, j;
    walk_tiles(p.group, p.by_columns, int(blockIdx.x) - batch * in_batch, p.tiles_m, p.tiles_n, i,
               j);
    const int row = i * kM, col = j * kCols;
    load_columns(p, reinterpret_cast<float*>(start + kColumnsAt), batch, col);
    Sums sums;
    multiply(p, start, batch, row, col, sums);
    p.epilogue.choose(
        p, [&](const auto& transform) { finish(transform, p, start, batch, row, col, sums); });
  }
};

template <class Product>
__global__ void __launch_bounds__(Product::kThreads)
    ampere_product(const __grid_constant__ typename Product::Params p) {
// Hopper has kernels of its own, and older GPUs have none of its parts.
#if defined(OPFORGE_SIM) || \
    (defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800 && !defined(__CUDA_ARCH_FEAT_SM90_ALL))
  Product::run(p);
#endif
}

}  // namespace opforge
