// SPDX-License-Identifier: Apache-2.0
// One result per row of a matrix, and a new row from it: norms, softmax and their gradients.
// Includes no torch header.
//
//   row      belongs to a group of threads: some lanes of a warp, a block, or the blocks of a
//            cluster
//   thread   loads its vectors of the row, two to eight, all before it uses the first: the row
//            is read once and stays in registers
//   warp     adds up the totals of its threads, by shuffles
//   block    its warps' totals meet in shared memory
//   cluster  every warp sends its total to the shared memory of all blocks of the row
//   thread   gets the total and writes the new row from its registers
//
// A block takes one row, or several short ones, and ends: while some blocks add up, others load. A
// row too long for the registers of eight blocks (of one, on GPUs before compute capability 9.0) is
// read again for every total and for its result. A visitor says what is loaded, added up and
// written; see RowVisitor.
//
// Rows need not be aligned, but those of all operands must be misaligned alike: vectors begin at
// 16-byte boundaries of memory, and the elements before and after them, the ends, are loaded one by
// one.
#pragma once

#include <opforge/core/async.h>
#include <opforge/core/cluster.h>
#include <opforge/core/index.h>
#include <opforge/core/launch.h>
#include <opforge/core/reduce.h>
#include <opforge/core/vec.h>

#include <algorithm>
#include <opforge/algorithms/row_visitor.cuh>
#include <type_traits>

namespace opforge {

constexpr int kRowThreads = 512;  // of a block, at most; a longer row takes several blocks
constexpr int kRowBlock = 128;    // threads of a block of short rows
constexpr int kMaxCluster = 8;
constexpr int kManyRows = 64;  // with fewer, no multiprocessor has a second row to load meanwhile
constexpr int64_t kFewVectors = 1 << 18;  // of all rows: too few to fill the multiprocessors

// The rows of a tensor: the last dim is contiguous, the others are one or two dims with any
// strides.
template <class T>
struct Rows {
  T* data = nullptr;
  int64_t stride = 0, outer_stride = 0;
  Divider<uint32_t> inner;  // rows until the outer dim steps; without one, outer_stride is 0

  __device__ __forceinline__ T* at(int64_t row) const {
    if (outer_stride == 0) return data + row * stride;
    const uint32_t outer = inner.divide(uint32_t(row));
    return data + outer * outer_stride + (uint32_t(row) - outer * inner.divisor) * stride;
  }
};

// Which threads take which rows.
struct RowPlan {
  int64_t rows, cols;
  int group;    // threads of one block that share a row: a power of two up to 32, or all of them
  int cluster;  // blocks that share a row
  int block;    // threads of a block
  bool held;    // whether a row fits the registers of its threads

  unsigned blocks() const { return unsigned(ceil_div(rows, block / group) * cluster); }
};

// `width` is the number of elements in a vector; ragged rows need not begin or end with a whole
// one. A thread holds up to `vectors` vectors, and a block has up to `threads_per_block` threads.
inline RowPlan plan_rows(int64_t rows, int64_t cols, int width, bool ragged, bool clusters,
                         int vectors = kHeld, int threads_per_block = kRowThreads) {
  // Ragged rows: a thread for each of the up to 2 (width - 1) elements of the two ends.
  RowPlan p{rows, cols, ragged ? 2 * width : 1, 1, kRowBlock, true};
  const int64_t threads = ceil_div(ceil_div(cols, width), vectors);
  if (threads <= kWarp) {
    while (p.group < threads) p.group *= 2;
    return p;
  }
  const auto in_block = [&] { return ceil_div(ceil_div(threads, p.cluster), kWarp) * kWarp; };
  while (clusters && p.cluster < kMaxCluster && in_block() > threads_per_block) p.cluster *= 2;
  p.held = in_block() <= threads_per_block;
  p.group = p.block = int(std::min<int64_t>(in_block(), threads_per_block));
  return p;
}

// This thread's place among those of its row.
struct Place {
  int64_t row;      // 0 if there is none
  int index, size;  // among the row's threads, in all of its blocks
  bool exists;      // the last block may have fewer rows than it has room for

  __device__ __forceinline__ explicit Place(const RowPlan& p) {
    size = p.group * p.cluster;
    if (p.group < int(blockDim.x)) {  // several rows, whose groups are powers of two
      const int shift = __ffs(p.group) - 1;
      row = int64_t(blockIdx.x) * (blockDim.x >> shift) + (threadIdx.x >> shift);
      index = int(threadIdx.x) & (p.group - 1);
    } else {
      row = blockIdx.x >> (__ffs(p.cluster) - 1);
      index = int(blockIdx.x & (p.cluster - 1)) * p.group + int(threadIdx.x);
    }
    exists = row < p.rows;
    if (!exists) row = 0;
  }
};

// For rows that take a cluster: where row_total() waits for the totals of all warps. One barrier is
// for even rounds, one for odd ones.
struct RowBarriers {
  Barrier totals[2];
};

// All threads call both, also where no cluster is used: arrive_rows() at the start of a kernel,
// await_rows() once, before the first row_total(), even if none follows.
__device__ __forceinline__ void arrive_rows(const RowPlan& p) {
  if (p.cluster == 1) return;
  if (threadIdx.x == 0) {
    RowBarriers& barriers = shared<RowBarriers>();
    init(barriers.totals[0], 1);
    init(barriers.totals[1], 1);
    publish_barriers();
  }
  cluster_arrive_relaxed();
}

__device__ __forceinline__ void await_rows(const RowPlan& p) {
  if (p.cluster > 1) cluster_wait();
}

// Combines the totals of a row's threads; all of them get the result. `round` is the number of
// calls before this one in the kernel.
template <RowTotal Total>
__device__ __forceinline__ Total row_total(const RowPlan& p, Total total, int round = 0) {
  if (p.group < kWarp) return warp_total(total, p.group);
  total = warp_total(total);
  if (p.group == kWarp && p.cluster == 1) return total;
  // Rounds alternate, so that warps that are a round ahead do not write what others still read.
  struct Parts {
    Total of[2][kMaxCluster * kRowThreads / kWarp];
  };
  Total(&parts)[kMaxCluster * kRowThreads / kWarp] = shared<Parts>().of[round % 2];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int warps = p.group / kWarp;  // of the block
  if (p.cluster == 1) {
    if (lane == 0) parts[warp] = total;
    __syncthreads();
  } else {
    // A block cannot be two rounds ahead: to end a round it needs what this one sends in it.
    Barrier& barrier = shared<RowBarriers>().totals[round % 2];
    const int all = warps * p.cluster;
    if (threadIdx.x == 0) arrive_expecting(barrier, uint32_t(all * sizeof(Total)));
    __syncwarp();  // what a warp sends also tells that all of its lanes have read the last round's
    if (lane < p.cluster) send(total, parts[cluster_rank() * warps + warp], barrier, lane);
    wait(barrier, uint32_t(round / 2 % 2));
  }
  total = Total();
#pragma unroll 1
  for (int i = lane; i < warps * p.cluster; i += kWarp) total += parts[i];
  return warp_total(total);
}

// The columns of a row that begins at `start`: `head` elements before the first aligned vector, the
// vectors, and what is left. Single elements on both sides are the ends. The row's threads take the
// vectors in turn; end i goes to thread i.
template <int N>
struct Columns {
  int head, ends;
  int64_t vectors;

  template <class T>
  __device__ __forceinline__ Columns(const T* start, int64_t cols, bool ragged = true) {
    head = ends = 0;
    vectors = cols / N;
    if (N == 1 || !ragged) return;
    head = (N - misalignment(start)) % N;
    if (head > cols) head = int(cols);
    vectors = (cols - head) / N;
    ends = int(cols - vectors * N);
  }
  __device__ __forceinline__ int64_t vector(int64_t i) const { return head + i * N; }
  __device__ __forceinline__ int64_t end(int i) const { return i < head ? i : i + vectors * N; }
};

template <class A>
struct Sum {
  A value = 0;
  __device__ __forceinline__ void operator+=(const Sum& other) { value += other.value; }
};

// All threads of a row: load, prepare, load parameters, settle (which adds up), write, finish. The
// first half is for rows that are held in registers, the other for those that are read again:
// there, parameters are loaded after settle(). The ends of a row are held in both.
template <int N, bool Ragged, class Holding, RowVisitor<N> Visitor>
__global__ void __launch_bounds__(Holding::kThreads, Holding::kBlocks)
    map_rows_kernel(const RowPlan p, const Visitor visitor) {
  arrive_rows(p);
  const Place place(p);
  const auto cursor = visitor.start(place.row);
  const Columns<N> columns(visitor.first(cursor), place.exists ? p.cols : 0, Ragged);
  const bool has_end = Ragged && place.index < columns.ends;
  const int64_t end = columns.end(place.index);
  typename Visitor::template Loaded<1> single;
  if (has_end) single = visitor.template load<1>(cursor, end);
  int round = 0;
  const auto total = [&](const auto& own) {
    if (round == 0) await_rows(p);
    return row_total(p, own, round++);
  };
  const auto conclude = [&](const auto& settled) {
    if (has_end) {
      const auto params = visitor.template load_params<1, Ragged>(cursor, end);
      visitor.write(cursor, end, visitor.result(cursor, end, single, params, settled));
    }
    if (place.exists && place.index == 0) visitor.finish(cursor, settled);
  };
  if constexpr (Holding::kVectors > 0) {
    constexpr int kOwn = Holding::kVectors, kAtOnce = Holding::kParamsAtOnce;
    typename Visitor::template Loaded<N> held[kOwn];
    const int vectors = int(columns.vectors);
    // Calls body(k, col) for the vectors of this thread.
    const auto owned = [&](auto&& body) {
#pragma unroll
      for (int k = 0; k < kOwn; ++k) {
        const int i = place.index + k * place.size;
        if (i < vectors) body(k, int(columns.vector(i)));
      }
    };
    owned([&](int k, int col) { held[k] = visitor.template load<N>(cursor, col); });
    owned([&](int k, int col) { visitor.prepare(cursor, col, held[k], false); });
    if (has_end) visitor.prepare(cursor, end, single, false);
    const auto each = [&](auto&& body) {
      owned([&](int k, int) { body(held[k]); });
      if (has_end) body(single);
    };
    // The first parameters come while the row is added up; all at once would take too many
    // registers.
    typename Visitor::template Params<N, Ragged> params[kAtOnce];
    const auto load_params = [&](int first) {
      owned([&](int k, int col) {
        if (k / kAtOnce * kAtOnce != first) return;
        params[k - first] = visitor.template load_params<N, Ragged>(cursor, col);
      });
    };
    load_params(0);
    const auto settled = visitor.settle(cursor, each, total);
    if (round == 0) await_rows(p);  // settle() added nothing up
#pragma unroll
    for (int first = 0; first < kOwn; first += kAtOnce) {
      if (first > 0) load_params(first);
      owned([&](int k, int col) {
        if (k / kAtOnce * kAtOnce != first) return;
        visitor.write(cursor, col,
                      visitor.result(cursor, col, held[k], params[k - first], settled));
      });
    }
    conclude(settled);
  } else {
    bool again = false;
    // Loads each vector of this thread and calls body(loaded, col).
    const auto owned = [&](auto&& body) {
      for (int64_t i = place.index; i < columns.vectors; i += place.size) {
        auto loaded = visitor.template load<N>(cursor, columns.vector(i));
        visitor.prepare(cursor, columns.vector(i), loaded, again);
        body(loaded, columns.vector(i));
      }
      again = true;
    };
    if (has_end) visitor.prepare(cursor, end, single, false);
    const auto each = [&](auto&& body) {
      owned([&](const auto& loaded, int64_t) { body(loaded); });
      if (has_end) body(single);
    };
    const auto settled = visitor.settle(cursor, each, total);
    if (round == 0) await_rows(p);
    owned([&](const auto& loaded, int64_t col) {
      const auto params = visitor.template load_params<N, Ragged>(cursor, col);
      visitor.write(cursor, col, visitor.result(cursor, col, loaded, params, settled));
    });
    conclude(settled);
  }
}

// Takes clusters only if a row does not fit one block, and if the kernel can run in clusters.
template <int N, class Holding, class... Params>
RowPlan plan_rows(int64_t rows, int64_t cols, bool ragged, void (*kernel)(Params...)) {
  const auto plan = [&](bool clusters) {
    return plan_rows(rows, cols, N, ragged, clusters, Holding::kVectors,
                     std::min(Holding::kThreads, kRowThreads));
  };
  const RowPlan p = plan(false);
  return p.held || !can_cluster(kernel) ? p : plan(true);
}

// Whether rows fit the registers of their threads. Only OfLong is asked, for rows of all lengths:
// rows that fit it also fit the holding that map_rows takes for them.
template <int N, RowVisitor<N> Visitor>
bool can_hold(int64_t rows, int64_t cols, bool ragged) {
  using Holding = typename Visitor::template Holds<false>::OfLong;
  return plan_rows<N, Holding>(rows, cols, ragged, map_rows_kernel<N, false, Holding, Visitor>)
      .held;
}

// Runs a visitor over all rows. `ragged`: rows do not all begin and end at 16-byte boundaries. A
// visitor without kAnyRow takes no rows that do not fit the registers, and no vectors of one
// element: nothing is launched for them. The caller must choose another visitor, see can_hold().
template <int N, RowVisitor<N> Visitor>
void map_rows(int64_t rows, int64_t cols, bool ragged, const Visitor& visitor,
              cudaStream_t stream) {
  if (rows == 0) return;
  const auto run = [&]<bool Ragged>(std::bool_constant<Ragged>) {
    using Holds = typename Visitor::template Holds<Ragged>;
    const auto hold = [&]<class Holding>(Holding*) {
      const auto kernel = map_rows_kernel<N, Ragged, Holding, Visitor>;
      const RowPlan p = plan_rows<N, Holding>(rows, cols, Ragged, kernel);
      const Config config{dim3(p.blocks()), dim3(p.block), stream, 0, false, p.cluster};
      if (p.held) return launch(kernel, config, p, visitor);
      if constexpr (Visitor::kAnyRow) {
        launch(map_rows_kernel<N, Ragged, HoldNothing, Visitor>, config, p, visitor);
      }
    };
    const int64_t vectors = ceil_div(cols, N);
    if (vectors <= 1024 && rows * vectors <= kFewVectors) {
      return hold(static_cast<typename Holds::OfFew*>(nullptr));
    }
    if (vectors <= 1024) return hold(static_cast<typename Holds::OfShort*>(nullptr));
    if (vectors <= 1536 || rows < kManyRows) {
      return hold(static_cast<typename Holds::OfMiddle*>(nullptr));
    }
    hold(static_cast<typename Holds::OfLong*>(nullptr));
  };
  if constexpr (N > 1) {
    if (ragged) return run(std::true_type{});
  }
  if constexpr (N > 1 || Visitor::kAnyRow) run(std::false_type{});
}

}  // namespace opforge
