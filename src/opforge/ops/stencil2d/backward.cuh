// SPDX-License-Identifier: Apache-2.0
// The gradients of stencil2d; kernel.cuh shows how they work.
#pragma once

#include "forward.cuh"

namespace opforge {

// The gradient of x: the stencil over grad_y with its weights flipped, but near the edges, where
// pixels stand in for others.
template <int Count, class Tile>
__device__ __forceinline__ void write_grad_x(const StencilParams<typename Tile::T>& p,
                                             const Place& place, const Tile& tile,
                                             const Image<typename Tile::T>& grad) {
  using T = typename Tile::T;
  using A = compute_t<T>;
  constexpr int N = Tile::N;
  T* const out = place.in<N>(p.out, p);
  A w[9], flipped[9];
  p.template get_weights<Count>(w);
#pragma unroll
  for (int i = 0; i < 9; ++i) flipped[i] = w[8 - i];
  tile.walk(place, [&](int r, const T*, const A(&window)[3][N + 2]) {
    if (r >= place.rows) return;
    store<N>(out + r * p.width, weighted<T, Count, N>(flipped, window));
  });
  // With a constant boundary no pixel stands in for another. The zeros in the rim of grad_y give
  // the right sums, unless a weight makes them NaN.
  bool zeros = p.boundary == Boundary::constant;
#pragma unroll
  for (const A& one : w) zeros = zeros && one - one == A(0);
  if (!zeros && place.near_edge<N>(p)) {
    const int64_t col = place.left + place.across * N;
#pragma unroll 1
    for (int r = 0; r < place.rows; ++r) {
      const int64_t row = place.top + place.down * place.shape.rows + r;
      const bool edge_row = row < kEdge || row >= p.height - kEdge;
#pragma unroll 1
      for (int e = 0; e < N; ++e) {
        if (!edge_row && col + e >= kEdge && col + e < p.width - kEdge) continue;
        out[r * p.width + e] =
            narrow<T>(gradient_at_edge(grad, w, Count, p.boundary, row, col + e));
      }
    }
  }
}

// sum[i] += what weight i gets from a thread's pixels.
template <int Count, class Tile, class A>
__device__ __forceinline__ void add_grad_weight(const Place& place, const Tile& grad, const Tile& x,
                                                A (&sum)[9]) {
  using T = typename Tile::T;
  constexpr int N = Tile::N;
  x.walk(place, [&](int r, const T* here, const A(&window)[3][N + 2]) {
    if (r >= place.rows) return;
    A passed[N];
    widen(load_packed<N>(grad.pixel + (here - x.pixel)), passed);
#pragma unroll
    for (int i = 0; i < 9; ++i) {
      if (!has_place(i, Count)) continue;
#pragma unroll
      for (int e = 0; e < N; ++e) {
        sum[i] = fused(passed[e], window[i / 3][e + i % 3], sum[i]);
      }
    }
  });
}

// The sums of a block's threads for each weight, in two steps.
template <class A, int Threads>
struct WeightSums {
  static constexpr int kParts = Threads / 16;
  A of_thread[9][Threads + kParts];  // the rows start at different banks
  A of_part[9][kParts];

  template <int Count>
  __device__ __forceinline__ void add_up(const A (&sum)[9], A* partial) {
#pragma unroll
    for (int i = 0; i < 9; ++i) of_thread[i][threadIdx.x] = sum[i];
    __syncthreads();
    if (threadIdx.x < 9 * kParts) {
      const int i = threadIdx.x / kParts, part = threadIdx.x % kParts;
      A total = 0;
#pragma unroll
      for (int k = 0; k < Threads; k += kParts) total += of_thread[i][part + k];
      of_part[i][part] = total;
    }
    __syncthreads();
    if (threadIdx.x < Count) {
      const int i = place_of_weight(threadIdx.x, Count);
      A total = 0;
      for (int part = 0; part < kParts; ++part) total += of_part[i][part];
      partial[int64_t(threadIdx.x) * gridDim.x + blockIdx.x] = total;
    }
  }
};

// `partial` gets what a block adds to each weight, block by block; null if that is not wanted.
template <class Tile, int Count>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBackwardBlocks)
    stencil_backward(const StencilParams<typename Tile::T> p,
                     compute_t<typename Tile::T>* partial) {
  using T = typename Tile::T;
  using A = compute_t<T>;
  struct Tiles {
    Tile grad, x;
  };
  union Memory {
    Tiles tiles;
    WeightSums<A, Tile::kThreads> sums;  // afterwards
  };
  Memory& memory = shared<Memory>();
  Tiles& tiles = memory.tiles;
  const Place place = Place::of<Tile>(p);
  const Image<T> x{p.x + place.plane * p.x_plane, p.x_row, p.height, p.width};
  const Image<T> grad{p.grad + place.plane * p.grad_plane, p.grad_row, p.height, p.width};
  tiles.grad.load(grad, place, Boundary::constant, narrow<T>(A(0)));
  if (partial) tiles.x.load(x, place, p.boundary, narrow<T>(A(p.fill)));
  __syncthreads();

  if (p.out) write_grad_x<Count>(p, place, tiles.grad, grad);
  if (!partial) return;

  A sum[9] = {};
  add_grad_weight<Count>(place, tiles.grad, tiles.x, sum);
  release_next();
  __syncthreads();  // the tiles are done with
  memory.sums.template add_up<Count>(sum, partial);
}

// One block for each weight: adds up what the blocks of stencil_backward found.
template <class A, class Out>
__global__ void __launch_bounds__(1024)
    sum_weights(const A* partial, int64_t blocks, Out* grad_weight) {
  await_previous();
  A sum = 0;
#pragma unroll 8
  for (int64_t k = threadIdx.x; k < blocks; k += blockDim.x) {
    sum += partial[blockIdx.x * blocks + k];
  }
  sum = group_sum(sum, blockDim.x);
  if (threadIdx.x == 0) grad_weight[blockIdx.x] = narrow<Out>(sum);
}

}  // namespace opforge
