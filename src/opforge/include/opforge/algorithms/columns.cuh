// SPDX-License-Identifier: Apache-2.0
// Sums down the columns of a rows x cols matrix in one pass, while the visitor may also write a
// result per element: bias and weight gradients, sums over the first dim. Includes no torch header.
//
// A block covers a tile of columns and every so many-th row, its threads side by side across the
// columns and stacked down the rows. Every thread adds up its columns in registers, the block
// combines its stack in shared memory, and a second small kernel adds the chunks, if there is more
// than one: a fixed order, no atomics.
//
// Rows whose length is no multiple of 32 bytes start at changing alignments, but rows r, r + P,
// r + 2P... (P up to 16) share one. So each block takes rows of one residue class and shifts its
// columns until all its accesses are aligned 16-byte vectors and its tiles begin with a 32-byte
// sector, the unit of memory; only the two ends go by element.
#pragma once

#include <opforge/core/launch.h>
#include <opforge/core/layout.h>
#include <opforge/core/shared.h>
#include <opforge/core/vec.h>

#include <algorithm>
#include <concepts>
#include <numeric>
#include <type_traits>

namespace opforge {

struct ColumnParams {
  int64_t rows, cols;
  int classes;          // residue classes of rows, P above: a power of two
  int chunks;           // row chunks per class
  int64_t batches;      // matrices
  int sector;           // elements in a sector (1: alignment does not matter)
  int base;             // elements by which row 0 is past a sector boundary
  int row_shift;        // and by which each further row adds to that
  int tile;             // threads across the columns: a power of two
  int height;           // and stacked, likewise
  int64_t vector_cols;  // vectors that cover a row in any class
  int64_t width;        // elements of a row of partial sums

  int64_t workspace() const { return parts() == 1 ? 0 : batches * parts() * width; }
  __host__ __device__ int parts() const { return classes * chunks; }
  // How far the rows of a class are shifted against the sectors.
  __device__ __forceinline__ int shift(int residue) const {
    return (base + residue * row_shift) & (sector - 1);
  }
};

constexpr int kColumnThreads = 512;

// Which columns a vector covers, and which of its elements exist.
struct Span {
  int64_t col;  // of element 0; negative at the left edge
  int lo, hi;
};

template <class Visitor>
constexpr int kRowsAtOnce = 4;
template <class Visitor>
  requires requires { Visitor::kRowsAtOnce; }
constexpr int kRowsAtOnce<Visitor> = Visitor::kRowsAtOnce;

// A visitor that needs something for each of its columns (a bias) has bind<N>(Span). It returns a
// visitor for a thread's columns, which keeps that in registers.
template <int N, class Visitor>
__device__ __forceinline__ decltype(auto) bound_visitor(const Visitor& visitor, const Span& span) {
  if constexpr (requires { visitor.template bind<N>(span); }) {
    return visitor.template bind<N>(span);
  } else {
    return (visitor);
  }
}

// What a visitor offers. kBlocks are the blocks that should fit a multiprocessor at once;
// kRowsAtOnce, optional, the rows a thread has in flight if the registers do not hold four. load()
// only loads: all loads of a trip are under way before the first use(). Whole: all N columns exist,
// not only those from span.lo to span.hi. The sums of squares of the columns, for example:
//
//   template <class T>
//   struct Squares {
//     using Element = T;
//     static constexpr int kBlocks = 2;
//     Matrix<const T> x;
//
//     struct Cursor { const T* x; };                    // addresses in one row
//     template <int N> struct Loaded { Vec<T, N> x; };  // what a thread loads of it
//
//     __device__ Cursor start(int64_t batch, int64_t row, int64_t col) const {
//       return {x.at(row, col)};
//     }
//     __device__ Cursor skip(const Cursor& c, int64_t rows) const {
//       return {c.x + rows * x.row_stride};
//     }
//     template <int N, bool Whole>
//     __device__ Loaded<N> load(const Cursor& c, const Span& span) const {
//       Loaded<N> in;
//       for (int e = span.lo; e < span.hi; ++e) in.x.value[e] = c.x[e];
//       return in;
//     }
//     template <int N, bool Whole>
//     __device__ void use(const Cursor&, const Span& span, const Loaded<N>& in,
//                         compute_t<T> (&sum)[N]) const {
//       for (int e = span.lo; e < span.hi; ++e) {
//         const auto v = widen(in.x.value[e]);
//         sum[e] += v * v;
//       }
//     }
//   };
template <class V, int N>
concept ColumnVisitor = requires(const V& visitor, const typename V::Cursor& cursor,
                                 const Span& span, const typename V::template Loaded<N>& loaded,
                                 compute_t<typename V::Element> (&sum)[N], int64_t i) {
  { V::kBlocks } -> std::convertible_to<int>;
  { visitor.start(i, i, i) } -> std::same_as<typename V::Cursor>;
  { visitor.skip(cursor, i) } -> std::same_as<typename V::Cursor>;
  { visitor.template load<N, true>(cursor, span) } -> std::same_as<typename V::template Loaded<N>>;
  // What bind() returns is not checked: on the host, nvcc leaves device functions without a body.
  requires requires { visitor.template bind<N>(span); } ||
               requires { visitor.template use<N, true>(cursor, span, loaded, sum); };
};

template <int N, class Visitor>
__global__ void __launch_bounds__(kColumnThreads, Visitor::kBlocks)
    column_sums(const ColumnParams p, const Visitor unbound,
                compute_t<typename Visitor::Element>* partial, typename Visitor::Element* out) {
  using T = typename Visitor::Element;
  using A = compute_t<T>;
  constexpr int kUnroll = kRowsAtOnce<Visitor>;
  struct Stack {
    A sum[kColumnThreads * N];
  };
  Stack& stack = shared<Stack>();

  const int across = threadIdx.x & (p.tile - 1), down = threadIdx.x / unsigned(p.tile);
  const int height = p.height;
  const int part = blockIdx.y, residue = part & (p.classes - 1);
  const int chunk = part / unsigned(p.classes);
  Span span;
  span.col = (int64_t(blockIdx.x) * p.tile + across) * N - p.shift(residue);
  span.lo = span.col < 0 ? int(-span.col) : 0;
  span.hi = p.cols - span.col < N ? int(p.cols - span.col) : N;

  const auto& visitor = bound_visitor<N>(unbound, span);

  // Rows of this class, counted by i; this thread takes i, i + step, ...
  const int64_t end = p.rows / p.classes + (residue < int(p.rows & (p.classes - 1)));
  const int64_t step = int64_t(p.chunks) * height;
  int64_t i = chunk * height + down;

  A sum[N];
#pragma unroll
  for (int e = 0; e < N; ++e) sum[e] = A(0);
  const auto walk = [&]<bool Whole>(std::bool_constant<Whole>) {
    auto cursor = visitor.start(blockIdx.z, residue + i * p.classes, span.col);
    const int64_t hop = step * p.classes;
    // All loads of a trip come before the first use, without a condition between them.
    typename Visitor::Cursor at[kUnroll];
    typename Visitor::template Loaded<N> loaded[kUnroll];
    for (; i + (kUnroll - 1) * step < end; i += kUnroll * step) {
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        at[u] = cursor;
        loaded[u] = visitor.template load<N, Whole>(cursor, span);
        cursor = visitor.skip(cursor, hop);
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        visitor.template use<N, Whole>(at[u], span, loaded[u], sum);
      }
    }
    if (i >= end) return;
#pragma unroll
    for (int u = 0; u < kUnroll - 1; ++u) {  // past the end, repeat the last row and do not use it
      at[u] = cursor;
      loaded[u] = visitor.template load<N, Whole>(cursor, span);
      if (i + (u + 1) * step < end) cursor = visitor.skip(cursor, hop);
    }
#pragma unroll
    for (int u = 0; u < kUnroll - 1; ++u) {
      if (i + u * step < end) visitor.template use<N, Whole>(at[u], span, loaded[u], sum);
    }
  };
  if (span.lo == 0 && span.hi == N) {
    walk(std::true_type{});
  } else if constexpr (N > 1) {  // one element is whole, or past the end
    if (span.hi > span.lo) walk(std::false_type{});
  }
  release_next();
#pragma unroll
  for (int e = 0; e < N; ++e) stack.sum[(down * p.tile + across) * N + e] = sum[e];
  __syncthreads();
  const int64_t first = int64_t(blockIdx.x) * p.tile * N;
  for (int q = threadIdx.x; q < p.tile * N; q += blockDim.x) {
    A total = A(0);
    for (int y = 0; y < height; ++y) total += stack.sum[y * p.tile * N + q];
    const int64_t at = first + q, batch = blockIdx.z;
    if (p.parts() > 1) {
      if (at < p.width) partial[(batch * p.parts() + part) * p.width + at] = total;
    } else if (at >= p.shift(0) && at - p.shift(0) < p.cols) {
      out[batch * p.cols + at - p.shift(0)] = narrow<T>(total);
    }
  }
}

// Adds the parts of each column and rounds once.
template <class T>
__global__ void __launch_bounds__(1024)
    column_finish(const ColumnParams p, const compute_t<T>* partial, T* out) {
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
  await_previous();
  if (col < p.cols) {
#pragma unroll 4
    for (int part = down; part < p.parts(); part += height) {
      const int shift = p.shift(part & (p.classes - 1));
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

// Measured on an H200 over tiles of 32 to 256 threads, 1 to 16 blocks per multiprocessor, and rows
// dealt out one by one or in runs: wide tiles and many blocks lose up to a third.
constexpr int kColumnTile = 32, kColumnWaves = 2;

// The split of the work: from the shape and the number of multiprocessors alone. All operands are
// aligned like `like`.
template <class T, int N>
ColumnParams plan_columns(int64_t batches, int64_t rows, int64_t cols,
                          const Matrix<const T>& like) {
  ColumnParams p;
  p.rows = rows;
  p.cols = cols;
  p.batches = batches;
  p.sector = N == 1 ? 1 : 2 * N;
  p.base = misalignment(like.data, 32) % p.sector;
  p.row_shift = rows == 1 ? 0 : int(like.row_stride % p.sector);
  p.classes = p.sector / std::gcd(p.sector, p.row_shift);
  const bool shifted = p.base != 0 || p.classes > 1;
  p.vector_cols = ceil_div(cols + (shifted ? p.sector - 1 : 0), N);
  p.width = p.vector_cols * N;
  p.tile = kColumnTile;
  while (p.tile > 1 && p.tile / 2 >= p.vector_cols) p.tile /= 2;
  const int64_t in_class = ceil_div(rows, p.classes);
  // Few rows leave the threads of a stack idle: rather fewer blocks, about one to a multiprocessor.
  while (p.tile < kColumnThreads && in_class <= kColumnThreads / p.tile / 2 &&
         ceil_div(p.vector_cols, p.tile) > multiprocessors()) {
    p.tile *= 2;
  }
  p.height = kColumnThreads / p.tile;
  while (p.height > 1 && p.height / 2 >= in_class) p.height /= 2;
  const int64_t tiles = ceil_div(p.vector_cols, p.tile) * p.classes * batches;
  // Rounded down: a block more than fits at once would double the time.
  const int64_t wanted = int64_t(multiprocessors()) * kColumnWaves / tiles;
  // A chunk is worth a block only if each of its threads has a few rows.
  const int64_t most = ceil_div(in_class, p.height * 4);
  const int64_t asked = tuning.rows;
  const int64_t chunks = asked ? ceil_div(in_class, asked) : std::min(wanted, most);
  p.chunks = int(std::clamp<int64_t>(chunks, 1, 65535 / p.classes));
  return p;
}

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
  requires ColumnVisitor<Visitor, N>
void sum_columns(const ColumnParams& p, const Visitor& visitor,
                 compute_t<typename Visitor::Element>* partial, typename Visitor::Element* out,
                 cudaStream_t stream) {
  using T = typename Visitor::Element;
  const dim3 grid(unsigned(ceil_div(p.vector_cols, p.tile)), unsigned(p.parts()),
                  unsigned(p.batches));
  const dim3 block(unsigned(p.tile * p.height));
  launch(column_sums<N, Visitor>, {grid, block, stream}, p, visitor, partial, out);
  if (p.parts() == 1) return;
  const int height = p.parts() <= 16 ? 4 : 32;
  const dim3 finish(unsigned(ceil_div(p.cols, 32)), 1, unsigned(p.batches));
  launch(column_finish<T>, {finish, dim3(32 * height), stream, 0, true}, p, partial, out);
}

}  // namespace opforge
