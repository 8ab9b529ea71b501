// SPDX-License-Identifier: Apache-2.0
// layer_norm and rms_norm of many long rows, see norm.cuh, with nothing around them but a relu
// before. Forward. Includes no torch header.
//
// As in norm_backward.cuh, a cluster of blocks, one to a multiprocessor, stays for the whole kernel
// and takes tiles of rows from a ring. A thread has the same columns in every row and keeps their
// weights and biases in registers; while the total of a tile is under way it works on others:
//
//   turn i    sums of tile i, squares around the mean of tile i - 1, result of tile i - 2
//             (around zero: squares of tile i, result of tile i - 1)
//
// What does not exist is not branched around: rows past the last and vectors past the end of a row
// are read from where there is something, and count for nothing.
#pragma once

#include <opforge/norm.cuh>
#include <opforge/ring.cuh>
#include <opforge/spread_totals.cuh>

namespace opforge {

constexpr int kStreamThreads = 512;  // of a block, and a warp that fills the ring
constexpr int kStreamColumns = 16;   // of a thread
template <class T>
constexpr int kStreamRows = 4 / sizeof(T);  // of a thread in a tile: what a turn costs is shared
// Below this map_rows is as good: shorter rows leave it enough in flight, and few tiles to a
// cluster do not make up for a ring that fills and drains.
constexpr int kStreamLeast = 16384;  // columns, which take more than one block
constexpr int kStreamTurns = 4;

template <class T>
struct NormStream {
  using A = compute_t<T>;
  RowPlan plan;
  RingParams<T, 1> ring;
  T* y;
  A *mean, *rstd;  // null: not wanted
  Param weight, bias;
  A offset, eps, share;  // as in NormForward
  int classes;           // of rows that begin alike, see norm_backward.cuh
  int tiles_of_class;
  int parts;             // clusters that share the tiles
  int jump;              // rows from a tile of a cluster to the next
  int64_t step, across;  // elements of y from one to the next, and between rows of a tile
};

// A thread's columns: N of them for a vector, 1 for an end.
template <int N, class A>
struct StreamColumns {
  bool exists;
  int col;
  A weight[N], bias[N];
};

template <class T, bool Centered, bool Ragged, bool Relu>
__global__ void __launch_bounds__(kStreamThreads + kWarp, 1) norm_stream(const NormStream<T> p) {
  using A = compute_t<T>;
  constexpr int N = kVec<T>, K = kStreamColumns / N, R = kStreamRows<T>;
  constexpr int kLag = Centered ? 2 : 1;  // turns from a tile's sums to its result
  constexpr int kSums = kLag * R;         // of a turn: tile i, then around the mean of tile i - 1
  const RowPlan& plan = p.plan;
  Ring<T, 1> ring(p.ring, plan.block / kWarp);
  SpreadTotals<A, kSums, kStreamThreads / kWarp, kMaxCluster> totals(plan.group, plan.cluster);
  cluster_sync();
  const int rank = cluster_rank(), index = int(threadIdx.x);
  const int64_t first_col = int64_t(rank) * p.ring.width;
  const int width = int(min(int64_t(p.ring.width), plan.cols - first_col));
  const bool fills = index >= plan.block;
  const int part = blockIdx.x / unsigned(plan.cluster);

  // Tiles are dealt as in norm_backward.cuh: in turn, or in runs if there are classes.
  const int rows = int(plan.rows), tiles = p.tiles_of_class * p.classes;
  int tile = Ragged ? int(int64_t(tiles) * part / p.parts) : part;
  const int stop = Ragged ? int(int64_t(tiles) * (part + 1) / p.parts) : tiles;
  RingPlace ahead, behind;
  unsigned turn = 0;
  while (tile < stop) {
    const int kind = Ragged ? tile / p.tiles_of_class : 0;
    const int until = Ragged ? min(stop, (kind + 1) * p.tiles_of_class) : stop;
    const int first_row = (tile - kind * p.tiles_of_class) * p.ring.height * p.classes + kind;
    // Only tiles that have a row: some classes have one less than others.
    const auto tiles_from = [&](int row) { return max(rows - row + p.jump - 1, 0) / p.jump; };
    const int turns = Ragged ? min(until - tile, tiles_from(first_row)) : tiles_from(first_row);
    tile = until;
    if (fills) {
      for (int i = 0; i < turns; ++i) ring.fill(ahead, first_row + i * p.jump, first_col, width);
      continue;
    }
    const Columns<N> columns(p.ring.source[0].at(first_row) + first_col, width);
    StreamColumns<N, A> vector[K];
    StreamColumns<1, A> end;
    const auto own = [&]<int M>(StreamColumns<M, A>& owned, int64_t col, bool exists) {
      owned.exists = exists;
      owned.col = exists ? int(col) : columns.head;
      fill(owned.weight, A(1));
      fill(owned.bias, A(0));  // PyTorch adds it, too: there is no -0.0
      if (!exists) return;
      if (p.weight) read<T>(p.weight, first_col + col, owned.weight);
      if (Centered && p.bias) read<T>(p.bias, first_col + col, owned.bias);
      if (p.offset != A(0)) {
#pragma unroll
        for (int e = 0; e < M; ++e) owned.weight[e] += p.offset;
      }
    };
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int i = index + k * plan.group;
      own(vector[k], columns.vector(i), i < columns.vectors);
    }
    if (Ragged) own(end, columns.end(index), index < columns.ends);
    const auto each = [&](auto&& body) {
#pragma unroll
      for (int k = 0; k < K; ++k) body(vector[k]);
      if constexpr (Ragged) {
        if (end.exists) body(end);
      }
    };

    // The rows of this thread in a tile, and how many tiles have them.
    const auto row = [&](int r, int i) { return first_row + r * p.classes + i * p.jump; };
    const int lead = Ragged ? ring.offset(first_row, 0, first_col) : 0;
    int count[R];
#pragma unroll
    for (int r = 0; r < R; ++r) count[r] = r == 0 ? turns : min(turns, tiles_from(row(r, 0)));
    const auto begin = [&](int stage, int r, int i) {
      return stage + lead + (r > 0 && i < count[r] ? r * ring.pitch() : 0);
    };
    const auto fetch = [&]<int M>(const StreamColumns<M, A>& owned, int at, A(&v)[M]) {
      const auto packed =
          load_packed<M>(reinterpret_cast<const T*>(ring.memory() + at) + owned.col);
      widen(Relu ? relu_of(packed) : packed, v);
    };
    // Sums are taken around the first element of a row, which only the first block has in its ring:
    // those of the next tile are fetched ahead of time.
    Packed<T, 1> first[R] = {};
    const auto fetch_first = [&](int i) {
#pragma unroll
      for (int r = 0; r < R; ++r) {
        if (i < count[r]) first[r] = load_packed<1>(p.ring.source[0].at(row(r, i)));
      }
    };
    if (Centered) fetch_first(0);

    T* out = p.y + row(0, 0) * plan.cols + first_col;
    int here = 0, last = 0, oldest = 0;  // where tiles i, i - 1, i - 2 begin
    A pivot[R] = {}, mean[R] = {}, old_mean[R] = {};
    for (int i = 0; i < turns + kLag; ++i) {
      A sums[kSums] = {}, total[kSums] = {};
      A old_pivot[R];
      oldest = last;
      last = here;
#pragma unroll
      for (int r = 0; r < R; ++r) {
        old_pivot[r] = pivot[r];
        old_mean[r] = mean[r];
      }
      if (i < turns) {
        ring.await(ahead);
        here = ahead.stage * p.ring.tile_bytes;
        ahead.next(p.ring.stages);
#pragma unroll
        for (int r = 0; r < R; ++r) {
          const int at = begin(here, r, i);
          if constexpr (Centered) {
            A element[1];
            widen(Relu ? relu_of(first[r]) : first[r], element);
            pivot[r] = pivot_of(element[0]);
          }
          each([&]<int M>(const StreamColumns<M, A>& owned) {
            A v[M];
            fetch(owned, at, v);
            const A some = Centered ? sum_around<T>(pivot[r], v) : squares_around<false>(A(0), v);
            sums[r] += owned.exists ? some : A(0);
          });
        }
        if (Centered) fetch_first(i + 1);
      }
      if (i > 0) totals.get(total, turn + i - 1);
      if (Centered && i > 0 && i <= turns) {
#pragma unroll
        for (int r = 0; r < R; ++r) {
          const int at = begin(last, r, i - 1);
          mean[r] = fma(total[r], p.share, old_pivot[r]);
          each([&]<int M>(const StreamColumns<M, A>& owned) {
            A v[M];
            fetch(owned, at, v);
            const A some = squares_around<true>(mean[r], v);
            sums[R + r] += owned.exists ? some : A(0);
          });
        }
      }
      if (i + 1 < turns + kLag) totals.put(sums, turn + i);
      if (i < kLag) continue;
#pragma unroll
      for (int r = 0; r < R; ++r) {
        const int at = begin(Centered ? oldest : last, r, i - kLag);
        const bool exists = i - kLag < count[r];
        const Scale<A> scale{old_mean[r], rsqrt(fma(total[kSums - R + r], p.share, p.eps))};
        const auto result = [&]<int M>(const StreamColumns<M, A>& owned) {
          A v[M];
          fetch(owned, at, v);
          normalise<Centered>(v, scale);
          weigh<Centered>(v, owned.weight, owned.bias);
          return narrow<T>(v);
        };
        T* const to = out + r * p.across;
        Packed<T, N> results[K];  // all of them first, so that no store holds up a load
#pragma unroll
        for (int k = 0; k < K; ++k) results[k] = result(vector[k]);
#pragma unroll
        for (int k = 0; k < K; ++k) {
          store_if<N>(exists && vector[k].exists, to + vector[k].col, results[k]);
        }
        if (Ragged && exists && end.exists) store<1>(to + end.col, result(end));
        if (exists && index == 0 && rank == 0) {
          const int one = row(r, i - kLag);
          if (p.mean != nullptr) p.mean[one] = scale.mean;
          if (p.rstd != nullptr) p.rstd[one] = scale.rstd;
        }
      }
      ring.release(behind);
      behind.next(p.ring.stages);
      out += p.step;
    }
    turn += turns + kLag - 1;
  }
}

// False: map_rows does as well.
template <class T, bool Centered>
bool plan_stream(int64_t rows, int64_t cols, bool ragged, NormStream<T>& p) {
  constexpr int64_t kElement = sizeof(T);
  if (cols < kStreamLeast || rows >= 1 << 30) return false;
  RowPlan& plan = p.plan;
  RingParams<T, 1>& ring = p.ring;
  const int64_t threads = ceil_div(cols, int64_t(kStreamColumns));
  plan = {rows, cols, 0, 1, 0, true};
  const auto warps = [&] { return ceil_div(ceil_div(threads, plan.cluster), kWarp) * kWarp; };
  while (plan.cluster < kMaxCluster && warps() > kStreamThreads) plan.cluster *= 2;
  if (warps() > kStreamThreads) return false;
  plan.group = plan.block = int(warps());
  p.classes = classes_of<T>(cols);
  p.parts = clusters_at_once(plan.cluster);
  ring.sources = 1;
  ring.rows = rows;
  ring.step = p.classes;
  ring.height = kStreamRows<T>;
  if (rows < int64_t(kStreamTurns) * ring.height * p.parts) return false;
  p.tiles_of_class = int(ceil_div(ceil_div(rows, int64_t(p.classes)), int64_t(ring.height)));
  // Whole vectors to every block, so that all of them are aligned alike.
  constexpr int64_t kMargins = 2 * kVec<T>;
  ring.width = int(ceil_div(ceil_div(cols, plan.cluster), kMargins) * kMargins);
  ring.pitch = int((ring.width + kMargins) * kElement);
  ring.tile_bytes = int(ceil_div(ring.pitch * ring.height, 128) * 128);
  ring.stages = int(std::min<int64_t>(ring_room() / ring.tile_bytes, kMaxStages));
  p.jump = (ragged ? 1 : p.parts) * ring.height * p.classes;
  p.step = int64_t(p.jump) * cols;
  p.across = p.classes * cols;
  return ring.stages >= (Centered ? 3 : 2) + 1;  // those in use, and one under way
}

}  // namespace opforge
