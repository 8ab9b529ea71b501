// SPDX-License-Identifier: Apache-2.0
// Sums down the columns of a rows x cols matrix in one pass, while the visitor may also write a
// result per element: bias and weight gradients, sums over the first dim. Includes no torch header.
//
// A block covers a tile of columns and a chunk of rows, its threads side by side across the columns
// and stacked down the rows. Every thread adds up its columns in registers, the block combines its
// stack in shared memory, and a second small kernel adds the chunks: a fixed order, no atomics.
//
// Rows whose length is no multiple of 16 bytes start at changing alignments, but rows r, r + P,
// r + 2P... (P = up to 8) share one. So each block takes rows of one residue class and shifts its
// columns until all its accesses are aligned 16-byte vectors; only the two ends go by element.
#pragma once

#include <opforge/launch.h>
#include <opforge/layout.h>
#include <opforge/shared.h>
#include <opforge/vec.h>

#include <algorithm>
#include <numeric>
#include <type_traits>

namespace opforge {

struct ColumnParams {
  int64_t rows, cols;
  int64_t classes;      // residue classes of rows, P above
  int64_t chunks;       // row chunks per class
  int64_t batches;      // matrices
  int base;             // elements by which row 0 lies past a 16-byte boundary
  int row_shift;        // and by which each further row adds to that
  int tile;             // threads across the columns
  bool interleave;      // a chunk takes every chunks-th row, not neighbouring ones
  int64_t vector_cols;  // vectors that cover a row in any class
  int64_t width;        // elements of a row of partial sums

  int64_t workspace() const { return batches * parts() * width; }
  __host__ __device__ int64_t parts() const { return classes * chunks; }
};

constexpr int kColumnThreads = 512;

// What the visitor sees of a vector: where it is and which of its elements exist.
struct Span {
  int64_t row, col;  // of element 0; col may be negative at the left edge
  int64_t batch;
  int lo, hi;
};

// Visitor: `using Element`, `using Loaded`;
//   Loaded load<N, Whole>(Span), void use<N, Whole>(Span, Loaded, acc (&sum)[N]).
template <int N, class Visitor>
__global__ void __launch_bounds__(kColumnThreads, 1)
    column_sums(const ColumnParams p, const Visitor visitor,
                compute_t<typename Visitor::Element>* partial) {
  using A = compute_t<typename Visitor::Element>;
  constexpr int kUnroll = 4;
  struct Stack {
    A sum[kColumnThreads * N];
  };
  Stack& stack = shared<Stack>();

  const int across = threadIdx.x % p.tile, down = threadIdx.x / p.tile;
  const int height = blockDim.x / p.tile;
  const int64_t part = blockIdx.y, residue = part % p.classes, chunk = part / p.classes;
  const int shift = N == 1 ? 0 : int((p.base + residue * p.row_shift) % N);
  const int64_t vector = int64_t(blockIdx.x) * p.tile + across;
  Span at;
  at.batch = blockIdx.z;
  at.col = vector * N - shift;
  at.lo = at.col < 0 ? int(-at.col) : 0;
  at.hi = p.cols - at.col < N ? int(p.cols - at.col) : N;
  const bool whole = at.lo == 0 && at.hi == N;

  // Rows of this class, counted by i; this thread takes i, i + step, ...
  const int64_t in_class = (p.rows - residue + p.classes - 1) / p.classes;
  const int64_t step = p.interleave ? p.chunks * height : height;
  int64_t i = p.interleave ? chunk * height + down : in_class * chunk / p.chunks + down;
  const int64_t end = p.interleave ? in_class : in_class * (chunk + 1) / p.chunks;

  A sum[N];
#pragma unroll
  for (int e = 0; e < N; ++e) sum[e] = A(0);
  if (at.col < p.cols && at.hi > at.lo) {
    const auto walk = [&]<bool Whole>(std::bool_constant<Whole>) {
      for (; i < end; i += kUnroll * step) {
        typename Visitor::template Loaded<N> loaded[kUnroll];
        Span where[kUnroll];
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
          where[u] = at;
          where[u].row = residue + (i + u * step) * p.classes;
          if (i + u * step < end) loaded[u] = visitor.template load<N, Whole>(where[u]);
        }
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
          if (i + u * step < end) visitor.template use<N, Whole>(where[u], loaded[u], sum);
        }
      }
    };
    whole ? walk(std::true_type{}) : walk(std::false_type{});
  }
#pragma unroll
  for (int e = 0; e < N; ++e) stack.sum[(down * p.tile + across) * N + e] = sum[e];
  __syncthreads();
  const int64_t first = int64_t(blockIdx.x) * p.tile * N;
  A* row = partial + (at.batch * p.parts() + part) * p.width;
  for (int q = threadIdx.x; q < p.tile * N; q += blockDim.x) {
    A total = A(0);
    for (int y = 0; y < height; ++y) total += stack.sum[y * p.tile * N + q];
    if (first + q < p.width) row[first + q] = total;
  }
}

// Adds the parts of each column and rounds once.
template <int N, class T>
__global__ void column_finish(const ColumnParams p, const compute_t<T>* partial, T* out) {
  using A = compute_t<T>;
  constexpr int kAcross = 32, kDown = 32;
  struct Stack {
    A sum[kDown][kAcross + 1];
  };
  Stack& stack = shared<Stack>();
  const int across = threadIdx.x % kAcross, down = threadIdx.x / kAcross;
  const int height = blockDim.x / kAcross;
  const int64_t col = int64_t(blockIdx.x) * kAcross + across, batch = blockIdx.z;
  A sum = A(0);
  if (col < p.cols) {
#pragma unroll 4
    for (int64_t part = down; part < p.parts(); part += height) {
      const int shift = N == 1 ? 0 : int((p.base + part % p.classes * p.row_shift) % N);
      sum += partial[(batch * p.parts() + part) * p.width + col + shift];
    }
  }
  stack.sum[down][across] = sum;
  __syncthreads();
  if (down == 0 && col < p.cols) {
    for (int y = 1; y < height; ++y) sum += stack.sum[y][across];
    out[batch * p.cols + col] = narrow<T>(sum);
  }
}

// The best tile, blocks per multiprocessor and row order differ between a visitor that also writes
// and one that only reads.
struct ColumnShape {
  int tile, waves;
  bool interleave;
};

// The split of the work: from the shape and the number of multiprocessors alone. All operands are
// aligned like `like`.
template <class T, int N>
ColumnParams plan_columns(int64_t batches, int64_t rows, int64_t cols, const Matrix<const T>& like,
                          ColumnShape shape) {
  ColumnParams p;
  p.rows = rows;
  p.cols = cols;
  p.batches = batches;
  p.base = misalignment(like.data) % N;
  p.row_shift = rows == 1 ? 0 : int(like.row_stride % N);
  p.classes = std::min<int64_t>(N / std::gcd(N, p.row_shift), rows);
  p.interleave = shape.interleave;
  const bool shifted = p.base != 0 || p.classes > 1;
  p.vector_cols = ceil_div(cols + (shifted ? N - 1 : 0), N);
  p.width = p.vector_cols * N;
  p.tile = shape.tile;
  while (p.tile > 1 && p.tile / 2 >= p.vector_cols) p.tile /= 2;
  const int64_t tiles = ceil_div(p.vector_cols, p.tile) * p.classes * batches;
  const int64_t wanted = ceil_div(int64_t(multiprocessors()) * shape.waves, tiles);
  // A chunk is worth a block only if each of its threads has a few rows.
  const int64_t most = ceil_div(rows, p.classes * (kColumnThreads / p.tile) * 4);
  p.chunks = tuning.rows ? ceil_div(rows, tuning.rows) : std::min(wanted, most);
  p.chunks = std::clamp<int64_t>(p.chunks, 1, 65535 / p.classes);
  return p;
}

template <int N>
using Width = std::integral_constant<int, N>;

// Calls run(Width<N>{}) with the 16-byte vector width if all operands share one alignment in every
// row, otherwise with 1.
template <class T, class Run>
void with_vectors(std::initializer_list<Matrix<const T>> operands, const Run& run) {
  const Matrix<const T>& first = *operands.begin();
  bool vectors = tuning.vec != 1;
  for (const auto& m : operands) {
    vectors = vectors && m.col_stride == 1 && misalignment(m.data) == misalignment(first.data) &&
              m.row_stride % kVec<T> == first.row_stride % kVec<T>;
  }
  vectors ? run(Width<kVec<T>>{}) : run(Width<1>{});
}

template <int N, class Visitor>
void sum_columns(const ColumnParams& p, const Visitor& visitor,
                 compute_t<typename Visitor::Element>* partial, typename Visitor::Element* out,
                 cudaStream_t stream) {
  using T = typename Visitor::Element;
  const dim3 grid(unsigned(ceil_div(p.vector_cols, p.tile)), unsigned(p.parts()),
                  unsigned(p.batches));
  launch(column_sums<N, Visitor>, {grid, dim3(kColumnThreads), stream}, p, visitor, partial);
  const int height = p.parts() <= 16 ? 4 : 32;
  const dim3 finish(unsigned(ceil_div(p.cols, 32)), 1, unsigned(p.batches));
  launch(column_finish<N, T>, {finish, dim3(32 * height), stream}, p, partial, out);
}

}  // namespace opforge
