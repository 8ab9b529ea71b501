// SPDX-License-Identifier: Apache-2.0
// The gradients of layer_norm and rms_norm: what the kernel in families/norm/backward.cuh gets, and
// how rows are dealt to its blocks and threads. Includes no torch header.
#pragma once

#include <opforge/core/params.h>

#include <opforge/algorithms/ring.cuh>
#include <opforge/families/norm/relu_dropout.cuh>

namespace opforge {

// Columns per thread. Doubles take more room in the ring.
template <class T>
constexpr int kColumnsPerThread = sizeof(T) == 8 ? 8 : 16;
constexpr int kBackwardThreads = 512;  // of a block, and a warp that fills the ring

// What a kernel is compiled for: a norm alone, with a relu as its prologue, with a residual, with a
// dropout as its epilogue and perhaps a relu as its prologue, or with any of all. The less it can,
// the fewer registers it takes.
enum class BackwardKind { plain, relu, residual, dropout, any };

// Rows that a thread works on at once: with two, each has less overhead. It is one where tiles of
// two rows per thread would be so large that the ring has room for too few.
template <class T, bool Centered, BackwardKind kind>
constexpr int kRowsPerThread = sizeof(T) == 2 && !Centered && kind == BackwardKind::plain ? 2 : 1;

// In the ring: grad_y, then h (or x, if h is only a function of it), then grad_h if it is there,
// then x if the prologue's relu needs it in addition to h.
constexpr int kNormSources = 4;

template <class T>
struct NormBackward {
  using A = compute_t<T>;
  RowPlan plan;
  RingParams<T, kNormSources> ring;
  T *grad_x, *grad_residual;  // grad_residual if it is not grad_x
  const A *mean, *rstd;
  Param weight, bias;
  ReluDropout<A> prologue, epilogue;
  bool summed;  // h is prologue(x) + residual, else x is all there is
  bool has_grad_h, has_x;
  A offset, share;             // share: 1 / cols
  A *weight_sums, *bias_sums;  // a row per block or cluster; null: not wanted
  int classes;                 // of rows that begin alike, see classes_of()
  int groups;                  // of threads, which take a row of a tile each, or several
  int64_t jump, step;          // from a thread's row to that of its next tile, in rows and elements

  __host__ __device__ int64_t tiles_of_class() const {
    return ceil_div(ceil_div(plan.rows, int64_t(classes)), int64_t(ring.height));
  }
  // Blocks (clusters) that share the tiles.
  int64_t parts() const {
    return std::min<int64_t>(tiles_of_class() * classes, clusters_at_once(plan.cluster));
  }
  // In elements of A, a row of sums where the ring was.
  __host__ __device__ int stack_pitch() const { return (ring.width + 3) / 4 * 4; }
  size_t shared_bytes() const {
    const int64_t stack = 2 * int64_t(groups) * stack_pitch() * int64_t(sizeof(A));
    return size_t(std::max(int64_t(ring.stages) * ring.stage_bytes(), stack));
  }
};

// How a backward's rows are dealt out, up to `rows_per_thread` at once. False: they are too long
// for a cluster.
template <class T>
bool plan_backward(int64_t rows, int64_t cols, int rows_per_thread, bool clusters, bool contiguous,
                   NormBackward<T>& p) {
  const int classes = classes_of<T>(cols);
  const int64_t room = ring_room();
  constexpr int64_t kElement = sizeof(T);
  const int64_t threads = ceil_div(cols, int64_t(kColumnsPerThread<T>));
  RowPlan& plan = p.plan;
  RingParams<T, kNormSources>& ring = p.ring;
  // Ragged rows have ends, of which a thread takes one.
  plan = {rows, cols, classes > 1 ? 2 * kVec<T> : 1, 1, 0, true};
  ring.width = int(std::min<int64_t>(cols, 1 << 24));
  if (threads <= kWarp) {
    while (plan.group < threads) plan.group *= 2;
    p.groups = kBackwardThreads / plan.group;
  } else {
    const auto warps = [&] { return ceil_div(ceil_div(threads, plan.cluster), kWarp) * kWarp; };
    const auto fits = [&] {
      const int64_t columns = warps() * kColumnsPerThread<T> + 2 * kVec<T>;
      return warps() <= kBackwardThreads && 3 * columns * kElement * ring.sources <= room;
    };
    while (clusters && plan.cluster < kMaxCluster && !fits()) plan.cluster *= 2;
    if (!fits()) return false;
    plan.group = int(warps());
    p.groups = plan.cluster > 1 ? 1 : std::max(kBackwardThreads / plan.group, 1);
    if (plan.cluster > 1) {  // whole vectors to every block, so that all of them are aligned alike
      ring.width = int(ceil_div(ceil_div(cols, plan.cluster), 2 * kVec<T>)) * 2 * kVec<T>;
    }
  }
  ring.height = p.groups * rows_per_thread;
  const auto shrink = [&] {
    if (ring.height == p.groups) p.groups = (p.groups + 1) / 2;
    ring.height = p.groups;
  };
  // Few rows leave no multiprocessor without work.
  while (ring.height > 1 && ceil_div(rows, int64_t(ring.height)) < multiprocessors() &&
         (ring.height > p.groups || plan.group * p.groups > kWarp)) {
    shrink();
  }
  ring.rows = rows;
  ring.step = p.classes = classes;
  const auto round_up = [](int64_t bytes, int64_t to) { return int(ceil_div(bytes, to) * to); };
  const int64_t margins = 2 * kVec<T>;
  const auto lay_out = [&] {
    const bool run = ring.height == 1 || (contiguous && classes == 1 && plan.cluster == 1);
    ring.pitch = run ? 0 : round_up((ring.width + margins) * kElement, 16);
    const int64_t bytes = run ? (int64_t(ring.height) * ring.width + margins) * kElement
                              : int64_t(ring.pitch) * ring.height;
    ring.tile_bytes = round_up(bytes, 128);
  };
  const auto least = [&] { return ring.height > p.groups ? 3 : 2; };  // stages
  for (lay_out(); ring.height > 1 && least() * ring.stage_bytes() > room; lay_out()) shrink();
  plan.block = plan.group * p.groups;
  ring.stages = int(std::clamp<int64_t>(room / ring.stage_bytes(), 2, 4));
  return true;
}

// The tiles of a block (or cluster), numbered class by class. Without classes, the blocks take them
// in turn, so that what is read at a time is close together. With classes, a block takes a run of
// them, and so has few classes.
template <class T, bool Ragged>
class BackwardTiles {
 public:
  int64_t first_row;  // of the first of them that are in one class
  int count;

  __device__ __forceinline__ BackwardTiles(const NormBackward<T>& p, int part, int parts)
      : p_(p), of_class_(p.tiles_of_class()) {
    const int64_t tiles = of_class_ * p.classes;
    tile_ = Ragged ? tiles * part / parts : part;
    stop_ = Ragged ? tiles * (part + 1) / parts : tiles;
    stride_ = Ragged ? 1 : parts;
  }

  // On to the next class; false if that was the last.
  __device__ __forceinline__ bool next() {
    if (tile_ >= stop_) return false;
    const int64_t kind = Ragged ? tile_ / of_class_ : 0;
    const int64_t until = Ragged ? min(stop_, (kind + 1) * of_class_) : stop_;
    count = int(ceil_div(until - tile_, stride_));
    first_row = (tile_ - kind * of_class_) * p_.ring.height * p_.classes + kind;
    tile_ = until;
    return true;
  }

 private:
  const NormBackward<T>& p_;
  int64_t of_class_, tile_, stop_, stride_;
};

}  // namespace opforge
