// SPDX-License-Identifier: Apache-2.0
// Rung 5, mma: the tensor cores of compute capability 8.0, kept busy by copies that do not wait.
//
// Fewest bytes: a, b and y once. Operations: 2 m n k.
// This rung moves m n k (1/128 + 1/256) elements from L2: a block makes 128 x 256 elements of y. A
// warp makes 64 x 64 of them and reads 8 KB of shared memory for 131072 multiplications of 16-bit
// numbers. cp.async fills a ring of 4 stages behind the back of the threads. 16-byte pieces are
// swizzled, so that neither copies nor ldmatrix meet in a bank. While the tensor cores multiply,
// the operands of the next step are on their way into registers.
#pragma once

#include <opforge/core/mma.h>
#include <opforge/core/pieces.h>
#include <opforge/core/shared.h>
#include <opforge/core/vec.h>
#include <opforge/families/product/call.h>

#include <algorithm>

#include "options.h"
#include "problem.h"

namespace opforge {

constexpr int kStageBytes = 64,
              kStepBytes = 32;  // of the inner dim: in a stage, in a multiplication

// An operand's tile in a stage: `Outer` rows of a or columns of b, of inner-major 64 bytes each, or
// an outer-major row for each inner index.
template <class T, Major major, int Outer, int Threads>
struct MmaOperand {
  static constexpr bool kInnerMajor = major == Major::inner;
  static constexpr int kPerPiece = kPieceBytes / int(sizeof(T));
  static constexpr int kInner = kStageBytes / int(sizeof(T));
  static constexpr int kBytes = Outer * kStageBytes;
  static constexpr int kRowPieces = kInnerMajor ? kStageBytes / kPieceBytes : Outer / kPerPiece;
  static constexpr int kRows = kInnerMajor ? Outer : kInner;
  static constexpr int kRowsAtOnce = Threads / kRowPieces;
  static constexpr int kPieces = kRows / kRowsAtOnce;  // of a thread
  static_assert(kInnerMajor || sizeof(T) == 2, "only 16-bit elements can be transposed");
  static_assert(kPieces * kRowsAtOnce == kRows && kRowsAtOnce % 8 == 0);

  const T *data, *from;          // from: where this thread's first piece comes from
  int64_t stride, outer, inner;  // of the matrix; what there is of it from that piece on
  int to;

  // Where a piece of a row is. Eight rows that ldmatrix reads at once are in all banks.
  static __device__ __forceinline__ int swizzle(int row, int piece) {
    const int other = kInnerMajor ? row / 2 % 4 : row % 8;
    return (row * kRowPieces + (piece ^ other)) * kPieceBytes;
  }

  __device__ MmaOperand(const ProductOperand& x, int64_t batch, int64_t outer_size,
                        int64_t first_outer, int64_t inner_size)
      : data(static_cast<const T*>(x.data) + batch * x.batch_stride), stride(x.stride) {
    const int row = int(threadIdx.x) / kRowPieces, piece = int(threadIdx.x) % kRowPieces;
    const int at_outer = kInnerMajor ? row : piece * kPerPiece;
    const int at_inner = kInnerMajor ? piece * kPerPiece : row;
    outer = outer_size - first_outer - at_outer;
    inner = inner_size - at_inner;
    from = data + (kInnerMajor ? (first_outer + at_outer) * stride + at_inner
                               : at_inner * stride + first_outer + at_outer);
    to = swizzle(row, piece);
  }

  // Asks for this thread's pieces of the next stage. What is beyond the matrix is zero.
  __device__ __forceinline__ void fetch(unsigned char* stage) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int64_t rows = kInnerMajor ? outer : inner, along = kInnerMajor ? inner : outer;
      const int64_t there = i * kRowsAtOnce >= rows ? 0 : along < kPerPiece ? along : kPerPiece;
      const int bytes = there > 0 ? int(there) * int(sizeof(T)) : 0;
      piece_copy(stage + to + i * kRowsAtOnce * kRowPieces * kPieceBytes,
                 bytes > 0 ? from + i * kRowsAtOnce * stride : data, bytes);
    }
    inner -= kInner;
    from += kInnerMajor ? kInner : kInner * stride;
  }

  // Four matrices of 8 x 16 bytes from `first` on: 16 outer indices by one step. With by_outer, the
  // first two have the same inner indices, as a wants them. Otherwise they have the same outer
  // ones, as b does.
  template <bool by_outer>
  static __device__ __forceinline__ void read(uint32_t (&to)[4], const unsigned char* stage,
                                              int first, int step) {
    const int lane = int(threadIdx.x) % 32, low = lane / 8 % 2, high = lane / 16;
    const int upper = by_outer ? low : high, later = by_outer ? high : low;
    if constexpr (kInnerMajor) {
      load_matrices(to, stage + swizzle(first + upper * 8 + lane % 8, step * 2 + later));
    } else {
      load_matrices<true>(to, stage + swizzle(step * 16 + later * 8 + lane % 8, first / 8 + upper));
    }
    if constexpr (sizeof(T) == 4) {
#pragma unroll
      for (uint32_t& word : to) {
        float value;
        memcpy(&value, &word, sizeof value);
        word = to_tf32(value);
      }
    }
  }
};

template <class T_, int M, int N, int WarpsDown, int WarpsAcross, Major a_major, Major b_major>
struct MmaProduct {
  using T = T_;
  static constexpr int kM = M, kN = N, kThreads = 32 * WarpsDown * WarpsAcross;
  static constexpr int kStages = 4, kSteps = kStageBytes / kStepBytes;
  using OperandA = MmaOperand<T, a_major, M, kThreads>;
  using OperandB = MmaOperand<T, b_major, N, kThreads>;
  static constexpr int kBytes = OperandA::kBytes + OperandB::kBytes;  // of a stage
  static constexpr int kSharedBytes = kStages * kBytes;

  static constexpr int kRows = M / WarpsDown, kCols = N / WarpsAcross;  // of a warp
  static constexpr int kDown = kRows / 16, kAcross = kCols / 8;         // its multiplications
  static_assert(kAcross % 2 == 0);

  using Sums = float[kDown][kAcross][4];
  struct Fragments {
    uint32_t a[kDown][4], b[kAcross / 2][4];
  };

  static __device__ __forceinline__ int first_row() {
    return int(threadIdx.x) / 32 / WarpsAcross * kRows;
  }
  static __device__ __forceinline__ int first_col() {
    return int(threadIdx.x) / 32 % WarpsAcross * kCols;
  }

  static __device__ __forceinline__ void read(Fragments& to, const unsigned char* stage, int step) {
#pragma unroll
    for (int i = 0; i < kDown; ++i) {
      OperandA::template read<true>(to.a[i], stage, first_row() + i * 16, step);
    }
#pragma unroll
    for (int j = 0; j < kAcross / 2; ++j) {
      OperandB::template read<false>(to.b[j], stage + OperandA::kBytes, first_col() + j * 16, step);
    }
  }

  static __device__ __forceinline__ void multiply(Sums& sums, const Fragments& f) {
#pragma unroll
    for (int i = 0; i < kDown; ++i) {
#pragma unroll
      for (int j = 0; j < kAcross; ++j) {
        const uint32_t b[2] = {f.b[j / 2][j % 2 * 2], f.b[j / 2][j % 2 * 2 + 1]};
        warp_multiply<T>(sums[i][j], f.a[i], b);
      }
    }
  }

  // The product of a tile, from a ring of stages.
  static __device__ __forceinline__ void multiply_tile(unsigned char* ring, OperandA& a,
                                                       OperandB& b, int64_t k, Sums& sums) {
    const auto stage = [&](int i) { return ring + i % kStages * kBytes; };
    // A thread makes a group of copies for each stage, also for those beyond the inner dim, which
    // are zeros: so that piece_wait() counts stages.
    const auto fetch = [&](int i) {
      a.fetch(stage(i));
      b.fetch(stage(i) + OperandA::kBytes);
      piece_commit();
    };
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) fetch(i);
    piece_wait<kStages - 2>();
    __syncthreads();
    Fragments f[2];
    read(f[0], stage(0), 0);
    const int count = int(ceil_div(k, OperandA::kInner));
    for (int i = 0; i < count; ++i) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const bool last = step == kSteps - 1;
        if (last) {
          piece_wait<kStages - 2>();
          __syncthreads();
        }
        read(f[(step + 1) % 2], stage(last ? i + 1 : i), last ? 0 : step + 1);
        // Into the stage before this one: before the last barrier, all have read it.
        if (step == 0) fetch(i + kStages - 1);
        multiply(sums, f[step % 2]);
      }
    }
    piece_wait<0>();
    __syncthreads();
  }

  // Rows leave in pieces of 16 bytes, through shared memory: 16 of a warp's rows at a time.
  static __device__ __forceinline__ void store(unsigned char* ring, const Sums& sums,
                                               const Matrix<T>& y, int64_t rows, int64_t cols,
                                               bool aligned) {
    constexpr int kStride = kCols + kVec<T>;
    static_assert(kThreads / 32 * 16 * kStride * int(sizeof(T)) <= kSharedBytes);
    const int lane = int(threadIdx.x) % 32;
    T* const own = reinterpret_cast<T*>(ring) + int(threadIdx.x) / 32 * 16 * kStride;
#pragma unroll
    for (int i = 0; i < kDown; ++i) {
#pragma unroll
      for (int j = 0; j < kAcross; ++j) {
#pragma unroll
        for (int e = 0; e < 4; e += 2) {
          T* const to = own + (lane / 4 + e / 2 * 8) * kStride + j * 8 + lane % 4 * 2;
          opforge::store<2>(to, {narrow<T>(sums[i][j][e]), narrow<T>(sums[i][j][e + 1])});
        }
      }
      __syncwarp();
      const int64_t first = first_row() + i * 16;
      constexpr int kAcrossPieces = kCols / kVec<T>;
#pragma unroll
      for (int piece = lane; piece < 16 * kAcrossPieces; piece += 32) {
        const int r = piece / kAcrossPieces, c = piece % kAcrossPieces * kVec<T>;
        const int64_t row = first + r, col = first_col() + c;
        const Vec<T, kVec<T>> v = load<kVec<T>>(own + r * kStride + c);
        if (row >= rows) continue;
        if (aligned && col < cols) {
          opforge::store<kVec<T>>(y.at(row, col), v);
        } else {
#pragma unroll
          for (int e = 0; e < kVec<T>; ++e) {
            if (col + e < cols) *y.at(row, col + e) = v.value[e];
          }
        }
      }
      __syncwarp();
    }
  }
};

struct MmaParams {
  int64_t m, n, k, batches;
  ProductOperand a, b;
  void* y;
};

template <class Product>
__global__ void __launch_bounds__(Product::kThreads) matmul_mma(const MmaParams p) {
  using T = typename Product::T;
  unsigned char* const ring = dynamic_shared();
  const Place place(p, Product::kM, Product::kN);
  typename Product::OperandA a(p.a, place.batch, p.m, place.row, p.k);
  typename Product::OperandB b(p.b, place.batch, p.n, place.col, p.k);
  typename Product::Sums sums = {};
  Product::multiply_tile(ring, a, b, p.k, sums);
  T* const y = static_cast<T*>(p.y) + (place.batch * p.m + place.row) * p.n + place.col;
  const bool aligned = p.n % kVec<T> == 0;
  Product::store(ring, sums, {y, p.n, 1}, p.m - place.row, p.n - place.col, aligned);
}

template <class Product>
inline void run_mma(const ProductCall& call) {
  const MmaParams p{call.m, call.n, call.k, call.batches, call.a, call.b[0], call.out[0].data};
  Config config{grid_of(p, Product::kM, Product::kN), dim3(Product::kThreads), call.stream};
  config.shared_bytes = Product::kSharedBytes;
  launch(matmul_mma<Product>, config, p);
}

// The large tile needs many of them to keep all multiprocessors busy.
template <class T, Major a, Major b>
inline void run_mma_rung(const ProductCall& call) {
  const bool many =
      ceil_div(call.m, 128) * ceil_div(call.n, 256) * call.batches >= multiprocessors() / 2;
  if (many) {
    run_mma<MmaProduct<T, 128, 256, 2, 4, a, b>>(call);
  } else {
    run_mma<MmaProduct<T, 64, 64, 2, 2, a, b>>(call);
  }
}

template <Major a, Major b>
inline void run_mma_short(const ProductCall& call) {
  if (call.dtype == DType::f16) return run_mma_rung<half, a, b>(call);
  run_mma_rung<bfloat16, a, b>(call);
}

}  // namespace opforge
