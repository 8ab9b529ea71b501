// SPDX-License-Identifier: Apache-2.0
// One result per row of a matrix, and a new row from it: norms, softmax and their gradients.
// Includes no torch header.
//
// Each row is read once and held in registers, two to eight 16-byte vectors to a thread, while its
// threads agree on the total: a few lanes, a block, or the blocks of a cluster through each other's
// shared memory, whatever the length takes. Only a row too long for eight blocks (before 9.0: for
// one) is read again for every total and for its result. Blocks do one row each, and many are in
// flight: memory is never idle while some of them add up. How many follows from the registers.
//
// Rows need not be aligned, only all operands alike: vectors begin at 16-byte boundaries of memory,
// and the two ends of a row go by element.
#pragma once

#include <opforge/core/async.h>
#include <opforge/core/cluster.h>
#include <opforge/core/index.h>
#include <opforge/core/launch.h>
#include <opforge/core/reduce.h>
#include <opforge/core/vec.h>

#include <algorithm>
#include <type_traits>

namespace opforge {

constexpr int kHeld = 4;          // vectors of a row that a thread holds, usually
constexpr int kRowThreads = 512;  // most of a block, before a row is spread over several
constexpr int kRowBlock = 128;    // threads of a block of short rows
constexpr int kMaxCluster = 8;
constexpr int kManyRows = 64;  // with fewer a multiprocessor has no second one to work on
constexpr int64_t kFewVectors = 1 << 18;  // of all rows: no multiprocessor has many threads

// How a row is held: so many vectors to a thread (0: not at all), of a block of so many threads at
// most; so many such blocks must have enough registers at once. Beside: vectors of what else a
// result takes, loaded at once.
template <int Vectors, int Threads, int Blocks, int Beside>
struct Hold {
  static constexpr int kVectors = Vectors, kThreads = Threads, kBlocks = Blocks, kBeside = Beside;
};
template <int Beside>
using HoldUsual = Hold<kHeld, 576, 2, Beside>;
using HoldNothing = Hold<0, 576, 2, 1>;
// Half as much to a thread, and twice the threads: faster where there is little to do.
using HoldLittle = Hold<2, 512, 3, 2>;

// What a visitor chooses for rows of up to 1024 vectors (and if these are few), up to 1536, and for
// many that are longer.
template <class Short, class Middle = Short, class Long = Middle, class Few = Short>
struct Holdings {
  using OfShort = Short;
  using OfFew = Few;
  using OfMiddle = Middle;
  using OfLong = Long;
};

// The rows of a tensor: the last dim is contiguous, the others are one or two dims with any
// strides.
template <class T>
struct Rows {
  T* data = nullptr;
  int64_t stride = 0, outer_stride = 0;
  Divider<uint32_t> inner;  // rows until the outer dim steps; unused if that has one

  __device__ __forceinline__ T* at(int64_t row) const {
    if (outer_stride == 0) return data + row * stride;
    const uint32_t outer = inner.divide(uint32_t(row));
    return data + outer * outer_stride + (uint32_t(row) - outer * inner.divisor) * stride;
  }
};

// How rows are dealt to threads.
struct RowPlan {
  int64_t rows, cols;
  int group;    // threads of a block to a row: up to 32 and a power of two, or the whole block
  int cluster;  // blocks to a row
  int block;    // threads
  bool held;    // whether a row fits the registers of its threads

  unsigned blocks() const { return unsigned(ceil_div(rows, block / group) * cluster); }
};

// `width` is that of a vector; ragged rows need not begin or end with a whole one.
inline RowPlan plan_rows(int64_t rows, int64_t cols, int width, bool ragged, bool clusters,
                         int held = kHeld, int most = kRowThreads) {
  RowPlan p{rows, cols, ragged ? 2 * width : 1, 1, kRowBlock, true};  // an element to a thread
  const int64_t threads = ceil_div(ceil_div(cols, width), held);
  if (threads <= kWarp) {
    while (p.group < threads) p.group *= 2;
    return p;
  }
  const auto warps = [&] { return ceil_div(ceil_div(threads, p.cluster), kWarp) * kWarp; };
  while (clusters && p.cluster < kMaxCluster && warps() > most) p.cluster *= 2;
  p.held = warps() <= most;
  p.group = p.block = int(std::min<int64_t>(warps(), most));
  return p;
}

// This thread's place among those of its row.
struct Place {
  int64_t row;      // 0 if there is none
  int index, size;  // among the row's threads, in all of its blocks
  bool exists;      // the last block may have less rows than it could

  __device__ __forceinline__ explicit Place(const RowPlan& p) {
    size = p.group * p.cluster;
    if (p.group < int(blockDim.x)) {  // several rows, of so many threads each: a power of two
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

// For rows that take a cluster: a barrier for totals on their way, of two turns.
struct RowBarriers {
  Barrier totals[2];
};

// Begins a kernel with rows; all threads call the two halves, as far apart as they like.
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

// Combines what the threads of a row have found; all of them get it. Totals are combined by +=, of
// which the order does not matter to the bits, and Total() changes nothing. Who calls it again and
// again counts the turns.
template <class Total>
__device__ __forceinline__ Total row_total(const RowPlan& p, Total total, int turn = 0) {
  if (p.group < kWarp) return warp_total(total, p.group);
  total = warp_total(total);
  if (p.group == kWarp && p.cluster == 1) return total;
  // Of two turns, so that those who are ahead do not write what the others still read.
  struct Parts {
    Total of[2][kMaxCluster * kRowThreads / kWarp];
  };
  Total(&parts)[kMaxCluster * kRowThreads / kWarp] = shared<Parts>().of[turn % 2];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int warps = p.group / kWarp;  // all of the block's
  if (p.cluster == 1) {
    if (lane == 0) parts[warp] = total;
    __syncthreads();
  } else {
    // A block that is a turn ahead has what this one sent in this turn, so it is at most one.
    Barrier& barrier = shared<RowBarriers>().totals[turn % 2];
    const int all = warps * p.cluster;
    if (threadIdx.x == 0) arrive_expecting(barrier, uint32_t(all * sizeof(Total)));
    __syncwarp();  // what a warp sends also tells that all of its lanes have read the last turn's
    if (lane < p.cluster) send(total, parts[cluster_rank() * warps + warp], barrier, lane);
    wait(barrier, uint32_t(turn / 2 % 2));
  }
  total = Total();
#pragma unroll 1
  for (int i = lane; i < warps * p.cluster; i += kWarp) total += parts[i];
  return warp_total(total);
}

// The columns of a row that begins at `start`: some before the first whole vector, the vectors, and
// what is left. The row's threads take vectors in turn, and the first ones an end each.
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

// For visitors of which no length of rows is special.
struct HeldAsUsual {
  template <bool Ragged>
  using Holds = Holdings<HoldUsual<2>>;
};

// For visitors that take nothing but the row.
struct Nothing {};
struct NothingBeside {
  template <int N, bool Ragged>
  using Beside = Nothing;
  template <int N, bool Ragged, class Cursor>
  __device__ __forceinline__ Nothing load_beside(const Cursor&, int64_t) const {
    return {};
  }
};

// A visitor has: using Element;
//   struct Cursor, where a row of each operand lies; Cursor start(row);
//   const Element* first(Cursor), an operand by which all are aligned;
//   template <int N> struct Loaded, N columns of the operands;
//   Loaded<N> load<N>(Cursor, col), which does nothing else: all loads of a row are under way
//   before the first is used; prepare(Cursor, col, Loaded<N>&, bool again), which may change them
//   and write, again in a later pass over a row that is not held;
//   Settled settle(Cursor, each, total), what follows from the row: each(f) calls f(Loaded<N>) for
//   all that this thread has of it, total(Total) adds up over its threads, and may be called twice;
//   void finish(Cursor, Settled), by one thread of the row;
//   template <int N, bool Ragged> struct Beside, what else a result takes; Beside<N, Ragged>
//   load_beside<N, Ragged>(Cursor, col); Packed<Element, N> result(Cursor, col, Loaded<N>,
//   Beside<N, Ragged>, Settled);
//   void write(Cursor, col, Packed<Element, N>);
//   template <bool Ragged> using Holds = Holdings<...>.
template <int N, bool Ragged, class Holding, class Visitor>
__global__ void __launch_bounds__(Holding::kThreads, Holding::kBlocks)
    map_rows(const RowPlan p, const Visitor visitor) {
  arrive_rows(p);
  const Place place(p);
  const auto cursor = visitor.start(place.row);
  const Columns<N> columns(visitor.first(cursor), place.exists ? p.cols : 0, Ragged);
  const bool has_end = Ragged && place.index < columns.ends;
  const int64_t end = columns.end(place.index);
  typename Visitor::template Loaded<1> single;
  if (has_end) single = visitor.template load<1>(cursor, end);
  int turn = 0;
  const auto total = [&](const auto& own) {
    if (turn == 0) await_rows(p);
    return row_total(p, own, turn++);
  };
  const auto conclude = [&](const auto& settled) {
    if (has_end) {
      const auto beside = visitor.template load_beside<1, Ragged>(cursor, end);
      visitor.write(cursor, end, visitor.result(cursor, end, single, beside, settled));
    }
    if (place.exists && place.index == 0) visitor.finish(cursor, settled);
  };
  if constexpr (Holding::kVectors > 0) {
    constexpr int kOwn = Holding::kVectors, kAtOnce = Holding::kBeside;
    typename Visitor::template Loaded<N> held[kOwn];
    const int vectors = int(columns.vectors);
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
    // The first come while the row is added up; all at once would take too many registers.
    typename Visitor::template Beside<N, Ragged> beside[kAtOnce];
    const auto load_beside = [&](int first) {
      owned([&](int k, int col) {
        if (k / kAtOnce * kAtOnce != first) return;
        beside[k - first] = visitor.template load_beside<N, Ragged>(cursor, col);
      });
    };
    load_beside(0);
    const auto settled = visitor.settle(cursor, each, total);
    if (turn == 0) await_rows(p);
#pragma unroll
    for (int first = 0; first < kOwn; first += kAtOnce) {
      if (first > 0) load_beside(first);
      owned([&](int k, int col) {
        if (k / kAtOnce * kAtOnce != first) return;
        visitor.write(cursor, col,
                      visitor.result(cursor, col, held[k], beside[k - first], settled));
      });
    }
    conclude(settled);
  } else {
    bool again = false;
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
    if (turn == 0) await_rows(p);
    owned([&](const auto& loaded, int64_t col) {
      const auto beside = visitor.template load_beside<N, Ragged>(cursor, col);
      visitor.write(cursor, col, visitor.result(cursor, col, loaded, beside, settled));
    });
    conclude(settled);
  }
}

// With clusters only if a row takes one, and the machine code of the kernel can.
template <int N, class Holding, class... Params>
RowPlan plan_rows(int64_t rows, int64_t cols, bool ragged, void (*kernel)(Params...)) {
  const auto plan = [&](bool clusters) {
    return plan_rows(rows, cols, N, ragged, clusters, Holding::kVectors,
                     std::min(Holding::kThreads, kRowThreads));
  };
  const RowPlan p = plan(false);
  return p.held || !can_cluster(kernel) ? p : plan(true);
}

// Whether the rows of a visitor fit the registers of their threads.
template <int N, class Visitor>
bool can_hold(int64_t rows, int64_t cols, bool ragged) {
  using Holding = typename Visitor::template Holds<false>::OfLong;
  return plan_rows<N, Holding>(rows, cols, ragged, map_rows<N, false, Holding, Visitor>).held;
}

// A visitor with kLong also takes what is rare: rows that are not held, vectors of one element.
template <int N, class Visitor>
void map_rows(int64_t rows, int64_t cols, bool ragged, const Visitor& visitor,
              cudaStream_t stream) {
  if (rows == 0) return;
  const auto run = [&]<bool Ragged>(std::bool_constant<Ragged>) {
    using Holds = typename Visitor::template Holds<Ragged>;
    const auto hold = [&]<class Holding>(Holding*) {
      const auto kernel = map_rows<N, Ragged, Holding, Visitor>;
      const RowPlan p = plan_rows<N, Holding>(rows, cols, Ragged, kernel);
      const Config config{dim3(p.blocks()), dim3(p.block), stream, 0, false, p.cluster};
      if (p.held) return launch(kernel, config, p, visitor);
      if constexpr (Visitor::kLong) {
        launch(map_rows<N, Ragged, HoldNothing, Visitor>, config, p, visitor);
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
  if constexpr (N > 1 || Visitor::kLong) run(std::false_type{});
}

}  // namespace opforge
