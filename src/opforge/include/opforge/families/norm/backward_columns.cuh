// SPDX-License-Identifier: Apache-2.0
// The gradients of layer_norm and rms_norm: the columns that a thread of families/norm/backward.cuh
// owns, in every row, and how their sums meet at the end. Includes no torch header.
#pragma once

#include <opforge/core/async.h>
#include <opforge/core/cluster.h>

#include <opforge/families/norm/backward_plan.cuh>

namespace opforge {

// Which columns are the block's, and this thread's place in it.
struct BackwardPlace {
  int64_t first_col;
  int width;
  int within, index;  // which of the block's groups of threads, and where in it
  bool fills;         // whether this thread fills the ring
  int part, parts;    // which of the blocks (clusters) that share the tiles

  template <class T>
  __device__ __forceinline__ explicit BackwardPlace(const NormBackward<T>& p) {
    const RowPlan& plan = p.plan;
    const int rank = plan.cluster == 1 ? 0 : cluster_rank();
    first_col = int64_t(rank) * p.ring.width;
    width = int(min(int64_t(p.ring.width), plan.cols - first_col));
    within = threadIdx.x / unsigned(plan.group);
    index = threadIdx.x % unsigned(plan.group);
    fills = int(threadIdx.x) >= plan.block;
    part = blockIdx.x / unsigned(plan.cluster);
    parts = gridDim.x / unsigned(plan.cluster);
  }
};

// What a thread has of its columns, in every row: N of them for a vector, 1 for an end.
template <int N, class A>
struct OwnedColumns {
  bool exists;
  A scale[N], weight_sum[N], bias_sum[N];
};

// All columns of a thread: K vectors, and an end if rows are ragged.
template <class T, bool Ragged>
class ThreadColumns {
  using A = compute_t<T>;

 public:
  static constexpr int N = kVec<T>, K = kColumnsPerThread<T> / N;

  __device__ __forceinline__ ThreadColumns(const Columns<N>& columns,
                                           OwnedColumns<N, A> (&vector)[K], OwnedColumns<1, A>& end,
                                           int index, const NormBackward<T>& p)
      : columns_(columns),
        vector_(vector),
        end_(end),
        index_(index),
        p_(p),
        first_vector_(int(columns.vector(index))),
        first_end_(int(columns.end(index))) {}

  __device__ __forceinline__ void begin(int64_t first_col, bool exist) {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int i = index_ + k * p_.plan.group;
      take(vector_[k], first_col, columns_.vector(i), exist && i < columns_.vectors);
    }
    if (Ragged) take(end_, first_col, first_end_, exist && index_ < columns_.ends);
  }

  // Calls body(owned, which, col), which is K for the end.
  template <class Body>
  __device__ __forceinline__ void each(Body&& body) {
#pragma unroll
    for (int k = 0; k < K; ++k) body(vector_[k], k, first_vector_ + k * p_.plan.group * N);
    if constexpr (Ragged) body(end_, K, first_end_);
  }

 private:
  template <int M>
  __device__ __forceinline__ void take(OwnedColumns<M, A>& owned, int64_t first_col, int64_t col,
                                       bool exists) {
    owned.exists = exists;
#pragma unroll
    for (int e = 0; e < M; ++e) {
      owned.scale[e] = A(1);
      owned.weight_sum[e] = owned.bias_sum[e] = A(0);
    }
    if (exists && p_.weight) {
      read<T>(p_.weight, first_col + col, owned.scale);
      if (p_.offset != A(0)) {
#pragma unroll
        for (int e = 0; e < M; ++e) owned.scale[e] += p_.offset;
      }
    }
  }

  const Columns<N>& columns_;
  OwnedColumns<N, A> (&vector_)[K];
  OwnedColumns<1, A>& end_;
  const int index_;
  const NormBackward<T>& p_;
  const int first_vector_, first_end_;
};

// The column sums of a block's threads meet where the ring was, those of vectors first.
template <class T, bool Centered, bool Ragged>
struct BlockSums {
  using A = compute_t<T>;
  static constexpr int N = kVec<T>;
  const NormBackward<T>& p;
  const BackwardPlace& place;
  const Columns<N>& columns;
  ThreadColumns<T, Ragged>& own;

  // All threads. What the block has found of earlier classes is in p's sums, but for the first.
  __device__ __forceinline__ void add_up(unsigned char* memory, bool first) const {
    __syncthreads();
    A* const stack = reinterpret_cast<A*>(memory);
    const int vector_columns = int(columns.vectors) * N, height = p.groups;
    const int pitch = p.stack_pitch();
    put(stack, vector_columns, height, pitch);
    __syncthreads();
    add_up_column(stack, p.weight_sums, vector_columns, height, pitch, first);
    if (Centered) {
      add_up_column(stack + height * pitch, p.bias_sums, vector_columns, height, pitch, first);
    }
    fence_for_copies();  // which land where the sums were, if there is another class
    __syncthreads();
  }

 private:
  __device__ __forceinline__ void put(A* stack, int vector_columns, int height, int pitch) const {
    own.each([&]<int M>(const OwnedColumns<M, A>& owned, int k, int) {
      if (!owned.exists) return;
      const int slot = M == 1 && k == own.K ? vector_columns + place.index
                                            : (place.index + k * p.plan.group) * N;
      constexpr int W = M < 4 ? M : 4;
#pragma unroll
      for (int e = 0; e < M; e += W) {
        Vec<A, W> weight, bias;
#pragma unroll
        for (int j = 0; j < W; ++j) {
          weight.value[j] = owned.weight_sum[e + j];
          bias.value[j] = owned.bias_sum[e + j];
        }
        store<W>(stack + place.within * pitch + slot + e, weight);
        if (Centered) store<W>(stack + (height + place.within) * pitch + slot + e, bias);
      }
    });
  }

  __device__ __forceinline__ void add_up_column(const A* column, A* sums, int vector_columns,
                                                int height, int pitch, bool first) const {
    if (place.fills || sums == nullptr) return;
    for (int col = threadIdx.x; col < place.width; col += p.plan.block) {
      const int past = col - columns.head;  // the first whole vector
      const int end = vector_columns + (col < columns.head ? col : col - vector_columns);
      const int slot = past >= 0 && past < vector_columns ? past : end;
      A all = column[slot];
      for (int r = 1; r < height; ++r) all += column[r * pitch + slot];
      A& sum = sums[place.part * p.plan.cols + place.first_col + col];
      sum = first ? all : sum + all;
    }
  }
};

}  // namespace opforge
