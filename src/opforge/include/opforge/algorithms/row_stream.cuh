// SPDX-License-Identifier: Apache-2.0
// Many long rows, each read once and written once, as norms do. Includes no torch header.
//
//   cluster   one block to a multiprocessor, for the whole kernel; takes tiles of rows
//   block     has its columns of every row, in a ring that a warp of its own fills
//   thread    has the same columns in every row of a class, see classes_of(); while the total of a
//             tile is under way it works on others
//
// There is no branch for what does not exist: for rows past the last one and vectors past the end
// of a row, other elements are read, and not used.
#pragma once

#include <opforge/algorithms/ring.cuh>

namespace opforge {

constexpr int kStreamThreads = 512;  // of a block, and a warp that fills the ring
constexpr int kStreamColumns = 16;   // of a thread
template <class T>
constexpr int kStreamRows = 4 / sizeof(T);  // of a thread in a tile, to share its overhead
// With fewer tiles per cluster, map_rows is as fast: they do not make up for the time in which the
// ring fills and drains.
constexpr int kStreamTiles = 4;

template <class T>
struct RowStream {
  RowPlan plan;
  RingParams<T, 1> ring;
  T* y;
  int classes;  // see classes_of()
  int tiles_of_class;
  int parts;             // clusters that share the tiles
  int jump;              // rows from a tile of a cluster to its next one
  int64_t step, across;  // elements of y: from a tile to the next, and between rows of a tile
};

// The tiles of a cluster. Without classes, the clusters take the tiles in turn. With classes, each
// takes a run of tiles.
template <class T, bool Ragged>
class StreamTiles {
 public:
  static constexpr int R = kStreamRows<T>;
  const int64_t first_col;  // of the block
  const int width;
  int count;  // of tiles in this class, if any; all have a first row

  __device__ __forceinline__ explicit StreamTiles(const RowStream<T>& p)
      : first_col(int64_t(cluster_rank()) * p.ring.width),
        width(int(min(int64_t(p.ring.width), p.plan.cols - first_col))),
        p_(p) {
    const int part = blockIdx.x / unsigned(p.plan.cluster), tiles = p.tiles_of_class * p.classes;
    tile_ = Ragged ? int(int64_t(tiles) * part / p.parts) : part;
    stop_ = Ragged ? int(int64_t(tiles) * (part + 1) / p.parts) : tiles;
  }

  // On to the next class; false if that was the last.
  __device__ __forceinline__ bool next() {
    if (tile_ >= stop_) return false;
    const int kind = Ragged ? tile_ / p_.tiles_of_class : 0;
    const int until = Ragged ? min(stop_, (kind + 1) * p_.tiles_of_class) : stop_;
    first_row_ = (tile_ - kind * p_.tiles_of_class) * p_.ring.height * p_.classes + kind;
    // Only tiles that have a row: some classes have one less than others.
    const auto tiles_from = [&](int row) {
      return max(int(p_.plan.rows) - row + p_.jump - 1, 0) / p_.jump;
    };
    count = Ragged ? min(until - tile_, tiles_from(first_row_)) : tiles_from(first_row_);
    tile_ = until;
#pragma unroll
    for (int r = 0; r < R; ++r) count_[r] = r == 0 ? count : min(count, tiles_from(row(r, 0)));
    lead_ = Ragged ? misalignment(start()) * int(sizeof(T)) : 0;
    return true;
  }

  // The block's part of the first row.
  __device__ __forceinline__ const T* start() const {
    return p_.ring.source[0].at(first_row_) + first_col;
  }
  // Row r of tile i, and whether there is one.
  __device__ __forceinline__ int row(int r, int i) const {
    return first_row_ + r * p_.classes + i * p_.jump;
  }
  __device__ __forceinline__ bool exists(int r, int i) const { return i < count_[r]; }
  // Where it begins in the ring, in bytes, or another row of the tile.
  __device__ __forceinline__ int begin(int stage, int r, int i) const {
    return stage + lead_ + (r > 0 && exists(r, i) ? r * p_.ring.pitch : 0);
  }

 private:
  const RowStream<T>& p_;
  int tile_, stop_, first_row_, lead_;
  int count_[R];  // of tiles that have the row
};

// False if map_rows is as fast. `used`: how many stages are read at a time.
template <class T>
bool plan_stream(int64_t rows, int64_t cols, bool ragged, int used, RowStream<T>& p) {
  constexpr int64_t kElement = sizeof(T);
  if (rows >= 1 << 30) return false;
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
  if (rows < int64_t(kStreamTiles) * ring.height * p.parts) return false;
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
  return ring.stages > used;
}

// False if the kernel cannot be launched with a cluster; then nothing is launched.
template <class Stream>
bool launch_stream(void (*kernel)(Stream), const Stream& p, cudaStream_t stream) {
  if (!can_cluster(kernel)) return false;
  launch(kernel,
         {dim3(unsigned(p.parts * p.plan.cluster)), dim3(p.plan.block + kWarp), stream,
          size_t(p.ring.stages) * p.ring.tile_bytes, false, p.plan.cluster},
         p);
  return true;
}

}  // namespace opforge
